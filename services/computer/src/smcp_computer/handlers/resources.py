"""The handlers of `client:resources/*` and `client:completion/complete`; those of prompts are in `handlers.prompts`.

Over the MCP servers of this Computer, or of the one that `serverId` names (computer.txt, resources chapter, 4.3).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import mcp_types as types
import orjson
from pydantic import ValidationError

from smcp_bus import exact_json
from smcp_bus.dispatch import Call, Handler, RawJson
from smcp_computer.access import Access, not_allowed
from smcp_computer.finder import Finder, MetadataCache, first_text
from smcp_computer.handlers.get_desktop import Desktop
from smcp_computer.handlers.prompts import LEFT_OUT, PromptHandlers
from smcp_computer.mcp.errors import (
    RESOURCE_NOT_FOUND,
    BadAnswer,
    NotSubscribable,
    RequestRefused,
    ServerError,
    ServerNotRunning,
    ServerTimedOut,
    bad_field,
    flat,
    is_not_found,
    jsonrpc_error,
)
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.outbox import ComputerOutbox, ResourceChanges
from smcp_computer.reply_limits import Budget, bounded
from smcp_computer.resources.index import Kind, ResourceIndex, named_apart, page_of, read_cursor, write_cursor
from smcp_computer.resources.routing import Directory
from smcp_computer.resources.subscriptions import AgentSubscriptions, UpstreamSubscriptions
from smcp_computer.settings import ComputerSettings
from smcp_computer.tools import History
from smcp_proto.errors import Unavailable
from smcp_proto.finder import unknown_categories
from smcp_proto.schemas.base import AgentCallData, JsonRpcRequest, ServerName, UnknownClientReq
from smcp_proto.schemas.resources import (
    CompleteReq,
    Cursor,
    ListResourcesReq,
    ListResourceTemplatesReq,
    ReadResourceReq,
    RequestEnvelope,
    SubscribeResourceReq,
    UnsubscribeResourceReq,
)
from smcp_proto.tool_results import with_meta
from smcp_proto.uris import DPE, parse_dpe_uri, scheme_of, without_query
from smcp_proto.validation import malformed
from smcp_service.lifecycle import Background

RESULT_KEY: Final[Mapping[Kind, str]] = {"resources": "resources", "templates": "resourceTemplates"}
LARGEST: Final = 1024 * 1024
"""Characters of an answer that is looked at: reading it once more takes time from everything else."""
PAGE_LEVEL: Final = 2
"""From this level on there are elements."""

Json = Mapping[str, Any]
Answer = tuple[str | None, Json]
"""A server and its result; None: the result of several."""


@dataclass(eq=False)
class ResourceHandlers:
    """Each public method is a handler. A server's refusal is a JSON-RPC error in the envelope; an SmcpError is flat."""

    directory: Directory
    index: ResourceIndex
    agents: AgentSubscriptions
    access: Access
    events: ServerEvents
    _: KW_ONLY
    name: str
    max_body: int

    async def list(self, request: ListResourcesReq, call: Call) -> RawJson:
        return await self.reply(request, request.payload, self._page("resources", request, call))

    async def templates(self, request: ListResourceTemplatesReq, call: Call) -> RawJson:
        return await self.reply(request, request.payload, self._page("templates", request, call))

    async def read(self, request: ReadResourceReq, call: Call) -> RawJson:
        budget, directory = Budget(call), self._of(call)

        async def ask(server: str, uri: str) -> Json:
            listed = directory.listed(uri, server)
            result = await self.index.connection(server).read(listed, timeout=budget.left)
            self.events.warn(server, *(f"{self.events.shown(uri)}: {what}" for what in odd(uri, result)))
            return result

        return await self.reply(request, request.payload, self._of_resource(request, directory, budget, ask))

    async def subscribe(self, request: SubscribeResourceReq, call: Call) -> RawJson:
        """Subscribe to the document itself, whatever format (`?format=markdown`) the URI names."""
        budget, directory = Budget(call), self._of(call)

        async def ask(server: str, uri: str) -> Json:
            features = self.index.features(server)
            if features is not None and not features.subscribe:
                raise NotSubscribable(server, "does not tell when its resources change")
            try:
                async with asyncio.timeout_at(budget.until):
                    await self.agents.subscribe(request.agent, server, directory.subscription_uri(uri, server))
            except TimeoutError:
                raise ServerTimedOut(server, "did not answer in time") from None
            return {}

        return await self.reply(request, request.payload, self._of_resource(request, directory, budget, ask))

    async def unsubscribe(self, request: UnsubscribeResourceReq, call: Call) -> RawJson:
        """End it, at the server that `serverId` names, or at all. Where there is no subscription, nothing is done."""
        server, uri, directory = request.serverId, request.payload.params.uri, self._of(call)
        if server is not None:
            directory.check_known(server)
        if not self.agents.has(request.agent, uri):
            uri = without_query(directory.checked(uri, server))
        self.agents.unsubscribe(request.agent, server, uri)
        return self._enveloped(request, request.payload, server, {"result": {}})

    async def complete(self, request: CompleteReq, call: Call) -> RawJson:
        """Values for an argument of a template."""
        return await self.reply(request, request.payload, self._completed(request, self._of(call), Budget(call)))

    def _of(self, call: Call) -> Directory:
        """The servers that this caller may use."""
        return self.directory.without(self.access.hidden(call.caller))

    async def _completed(self, request: CompleteReq, directory: Directory, budget: Budget) -> Answer:
        asked = request.payload.params
        if asked.ref.uri is None and request.serverId is None:
            raise bad_field("payload.params.ref.uri", "is missing")
        servers = await directory.template_candidates(asked.ref.uri or "", request.serverId, timeout=budget.left)
        params = asked.model_dump(mode="json", by_alias=True, exclude_unset=True)

        async def ask(server: str) -> Json:
            return with_meta(await self.index.connection(server).complete(params, timeout=budget.left))

        return await _first(servers, ask, completes_nothing)

    async def _page(self, kind: Kind, request: ListResourcesReq | ListResourceTemplatesReq, call: Call) -> Answer:
        params, server = request.payload.params, request.serverId
        cursor = params.cursor if params is not None else None
        after = None if cursor is None else read_cursor(cursor, kind, server)
        items, left_out = await self._of(call).lists(
            kind, server, timeout=Budget(call).left, begin="" if after is None else after.server
        )
        if kind == "templates" and server is None:
            items = {**named_apart(items)}
        page = page_of(kind, items, after)
        for of, uri in page.left_out:
            self.events.warn(of, f"{self.events.shown(uri)!r} is too large to be listed; it is left out")
        result: dict[str, Any] = {RESULT_KEY[kind]: page.items}
        if page.next is not None:
            result["nextCursor"] = write_cursor(page.next)
        if left_out:
            result["meta"] = {LEFT_OUT: left_out}
        return server, result

    async def _of_resource(
        self,
        request: ReadResourceReq | SubscribeResourceReq,
        directory: Directory,
        budget: Budget,
        ask: Callable[[str, str], Awaitable[Json]],
    ) -> Answer:
        """The answer of the first server that has the resource and, for a subscription, announces its changes."""
        uri = directory.checked(request.payload.params.uri, request.serverId)
        servers = await directory.candidates(uri, request.serverId, timeout=budget.left)
        return await _first(
            servers,
            lambda server: ask(server, uri),
            lambda error: isinstance(error, NotSubscribable) or is_not_found(error),
        )

    async def reply(self, request: RequestEnvelope, payload: JsonRpcRequest, answer: Awaitable[Answer]) -> RawJson:
        try:
            server, result = await answer
        except (RequestRefused, BadAnswer) as error:
            return self._enveloped(request, payload, error.server, {"error": jsonrpc_error(payload.method, error)})
        except ServerError as error:
            raise flat(error) from None
        return self._enveloped(request, payload, server, {"result": result})

    def _enveloped(
        self, request: RequestEnvelope, payload: JsonRpcRequest, server: str | None, answer: Json
    ) -> RawJson:
        envelope: dict[str, Any] = {"roomId": request.roomId, "computerId": self.name}
        if server is not None:
            envelope["serverId"] = server
        if request.req_id is not None:
            envelope["req_id"] = request.req_id
        return bounded({**envelope, "payload": {"jsonrpc": "2.0", "id": payload.id, **answer}}, self.max_body)


def odd(uri: str, result: Json) -> Iterator[str]:
    """The unknown categories of a page or element that was read."""
    if scheme_of(uri) != DPE:
        return
    text = first_text(result)
    if text is None or len(text) > LARGEST:
        return
    with suppress(ValueError):  # it is no dpe:// URI, or no JSON
        if parse_dpe_uri(uri).level >= PAGE_LEVEL:
            yield from unknown_categories(orjson.loads(text))


def completes_nothing(error: ServerError) -> bool:
    """Whether a server has no completions, or does not know the template."""
    codes = (types.METHOD_NOT_FOUND, types.INVALID_PARAMS, RESOURCE_NOT_FOUND)
    return isinstance(error, RequestRefused) and error.code in codes


async def _first(
    servers: Sequence[str], ask: Callable[[str], Awaitable[Json]], is_another: Callable[[ServerError], bool]
) -> Answer:
    """Ask servers one after the other: the next one where the one before is not running, or `is_another` says so."""
    *others, last = servers
    for server in others:
        try:
            return server, await ask(server)
        except ServerError as error:
            if not (isinstance(error, ServerNotRunning) or is_another(error)):
                raise
    return last, await ask(last)


GET_RESOURCES: Final = "client:get_resources"
SERVER_NOT_FOUND: Final = 4014
NOT_SUPPORTED: Final = 4015
_KEYS: Final = {"description": "description", "mimeType": "mime_type", "size": "size", "_meta": "_meta"}
_ANNOTATIONS: Final = {"audience": "audience", "priority": "priority", "lastModified": "last_modified"}


class _GetResourcesReq(AgentCallData):
    mcp_server: ServerName
    cursor: Cursor | None = None


class GetResources:
    """`client:get_resources` of the published package (0.4): one page of one MCP server's own list, in its shape.

        request   {"computer", "mcp_server", "cursor"?, "agent", "req_id"}
        reply     {"resources": [...], "next_cursor"?, "req_id"}
        or        {"code": 4014 | 4015, "message", "mcp_server", "capability"?}

    The cursor is the MCP server's own. Keys of a resource are in snake_case, and only those that the package knows.
    """

    def __init__(self, supervisors: Mapping[str, Supervisor], access: Access, *, max_body: int) -> None:
        self._supervisors = supervisors
        self._access = access
        self._max_body = max_body

    async def __call__(self, request: UnknownClientReq, call: Call) -> RawJson:
        """One page.

        Raises:
            NotAllowed: the server is not for this caller.
            Malformed: a field is wrong, or the server does not know the cursor.
            TooLarge: the page is larger than the bus takes.
            TimedOut, Unavailable: the server does not answer, or is not running.
        """
        try:
            asked = _GetResourcesReq.model_validate(call.payload)
        except ValidationError as error:
            raise malformed(error) from None
        if asked.mcp_server in self._access.hidden(call.caller):
            raise not_allowed("mcp_server")
        server, supervisor = asked.mcp_server, self._supervisors.get(asked.mcp_server)
        if supervisor is None:
            return _refused(SERVER_NOT_FOUND, "MCP Server not registered", mcp_server=server)
        if not supervisor.ready:
            raise Unavailable(f"MCP server {server!r} is not running ({supervisor.state})")
        resources = supervisor.resources
        if resources is None:
            message = "MCP Server does not support 'resources' capability"
            return _refused(NOT_SUPPORTED, message, mcp_server=server, capability="resources")
        try:
            page, following = await resources.list_page(asked.cursor, timeout=Budget(call).left)
        except RequestRefused as error:
            if asked.cursor is None:
                raise Unavailable(str(error)) from None
            raise bad_field("cursor", error) from None
        except ServerError as error:
            raise flat(error) from None
        found = [resource for item in page if (resource := _published(item)) is not None]
        reply = {"resources": found, "req_id": asked.req_id}
        if following is not None:
            reply["next_cursor"] = following
        return bounded(reply, self._max_body)


def _published(item: object) -> dict[str, Any] | None:
    if not (isinstance(item, Mapping) and isinstance(item.get("uri"), str) and isinstance(item.get("name"), str)):
        return None
    resource = {"uri": item["uri"], "name": item["name"]} | _renamed(item, _KEYS)
    annotations = item.get("annotations")
    if isinstance(annotations, Mapping) and (renamed := _renamed(annotations, _ANNOTATIONS)):
        resource["annotations"] = renamed
    return resource


def _renamed(item: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {name: item[key] for key, name in keys.items() if item.get(key) is not None}


def _refused(code: int, message: str, **fields: str) -> RawJson:
    """The package's own flat error: its fields stand beside the code."""
    return RawJson(exact_json.written({"code": code, "message": message, **fields}))


class ResourceServices:
    """`index.run` must be running; `history` must hear of each call of a tool. `handlers` are by event."""

    def __init__(
        self,
        settings: ComputerSettings,
        fleet: Fleet,
        access: Access,
        outbox: ComputerOutbox,
        tasks: Background,
        *,
        max_body: int,
    ) -> None:
        events, supervisors = fleet.events, fleet.supervisors
        self.history = History()
        self.index = ResourceIndex(supervisors, events)
        self.upstream = UpstreamSubscriptions(supervisors, events, tasks)
        self.agents = AgentSubscriptions(self.upstream, outbox.missed)
        self.cache = MetadataCache(
            self._read, tasks, self.upstream.subscribed, events, cache_bytes=settings.finder_cache_bytes
        )
        self.changes = ResourceChanges(self.index, self.upstream, self.agents, events, self.cache, outbox)
        directory = Directory(supervisors, self.index, self.history, events)
        resources = ResourceHandlers(
            directory, self.index, self.agents, access, events, name=settings.name, max_body=max_body
        )
        prompts = PromptHandlers(supervisors, directory, access, events, self.history, resources.reply)

        async def complete(request: CompleteReq, call: Call) -> RawJson:
            of_prompt = request.payload.params.ref.type == "ref/prompt"
            return await (prompts if of_prompt else resources).complete(request, call)

        self.handlers: Mapping[str, Handler] = {
            "client:get_desktop": Desktop(
                self.index, self.history, access, events, tasks, read_s=settings.read_s, max_body=max_body
            ),
            "client:get_finder": Finder(
                self.cache,
                directory.documents,
                self.history,
                access,
                wait_s=settings.read_s,
                max_body=max_body,
            ),
            "client:resources/list": resources.list,
            "client:resources/templates/list": resources.templates,
            "client:resources/read": resources.read,
            "client:resources/subscribe": resources.subscribe,
            "client:resources/unsubscribe": resources.unsubscribe,
            "client:completion/complete": complete,
            "client:prompts/list": prompts.list,
            "client:prompts/get": prompts.get,
            GET_RESOURCES: GetResources(supervisors, access, max_body=max_body),
        }

    async def _read(self, server: str, uri: str, timeout: float) -> Mapping[str, Any]:
        return await self.index.connection(server).read(uri, timeout=timeout)
