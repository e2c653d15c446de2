"""The handlers of `client:resources/*`, `client:completion/complete` and `client:prompts/*`.

Over the MCP servers of this Computer, or of the one that `serverId` names (computer.txt, resources chapter, 4.3).
Of prompts nothing is kept: each request asks the servers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import mcp_types as types
import orjson
from pydantic import ValidationError

from smcp_bus import exact_json
from smcp_bus.dispatch import Answer, Call, Handler
from smcp_computer.access import Access, not_allowed
from smcp_computer.finder import Finder, first_text
from smcp_computer.handlers.get_desktop import Desktop
from smcp_computer.mcp import errors
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.resources import LISTS, Json, Kind
from smcp_computer.outbox import OfferedResources
from smcp_computer.resources.index import (
    PAGE_BYTES,
    ResourceIndex,
    page_of,
    read_position,
    with_unique_names,
)
from smcp_computer.resources.routing import Budget, Routes
from smcp_computer.resources.subscriptions import Subscriptions
from smcp_computer.settings import ComputerSettings
from smcp_computer.tools import History
from smcp_proto.errors import Unavailable
from smcp_proto.finder import unknown_categories
from smcp_proto.schemas.base import AgentCallData, JsonRpcRequest, ServerName, UnknownClientReq
from smcp_proto.schemas.resources import (
    CompleteReq,
    Cursor,
    GetPromptReq,
    ListPromptsReq,
    ListResourcesReq,
    ListResourceTemplatesReq,
    ReadResourceReq,
    RequestEnvelope,
    SubscribeResourceReq,
    UnsubscribeResourceReq,
)
from smcp_proto.tool_results import with_meta
from smcp_proto.uris import DPE, parse_dpe_uri, scheme_of
from smcp_proto.validation import malformed, refused, write_cursor
from smcp_service.lifecycle import Background

LEFT_OUT: Final = "a2c_skipped_servers"
"""In `meta` of a list over several servers: whose items are missing from this page on. Not `a2c_skipped`: those are
Computers that a list over the whole office lacks, and both may stand in one page."""

ListReq = ListResourcesReq | ListResourceTemplatesReq | ListPromptsReq
Answered = tuple[str | None, Json]
"""A server and its result; None: the result of several."""


@dataclass(eq=False)
class ResourceHandlers:
    """Each public method is a handler. A server's refusal is a JSON-RPC error in the envelope; an SmcpError is flat."""

    index: ResourceIndex
    subscriptions: Subscriptions
    history: History
    access: Access
    events: ServerEvents
    name: str

    async def page(self, kind: Kind, request: ListReq, call: Call) -> Answer:
        return await self._reply(request, request.payload, self._page(kind, request, call))

    async def get_prompt(self, request: GetPromptReq, call: Call) -> Answer:
        name = request.payload.params.name
        return await self._reply(request, request.payload, self._of_listed("prompts", name, request, call))

    async def complete(self, request: CompleteReq, call: Call) -> Answer:
        """Values for an argument of a template, or of a prompt."""
        ref = request.payload.params.ref
        if ref.type == "ref/prompt":
            answer = self._of_listed("prompts", ref.name or "", request, call)
        elif ref.uri is None and request.serverId is None:
            raise refused("payload.params.ref.uri", "is missing")
        else:
            answer = self._of_listed("templates", ref.uri or "", request, call)
        return await self._reply(request, request.payload, answer)

    async def read(self, request: ReadResourceReq, call: Call) -> Answer:
        routes = self._routes(call)

        async def ask(server: str, uri: str) -> Json:
            listed = routes.listed(uri, server)
            result = await self.index.connection(server).read(listed, timeout=routes.budget.left)
            self.events.warn(server, *(f"{self.events.shown(uri)}: {what}" for what in category_warnings(uri, result)))
            return result

        return await self._reply(request, request.payload, self._of_resource(request, routes, ask))

    async def subscribe(self, request: SubscribeResourceReq, call: Call) -> Answer:
        """Subscribe to the document itself, whatever format (`?format=markdown`) the URI names."""
        routes = self._routes(call)

        async def ask(server: str, uri: str) -> Json:
            features = self.index.features(server)
            if features is not None and not features.subscribe:
                raise errors.NotSubscribable(server, "does not announce changes of its resources")
            try:
                async with asyncio.timeout_at(routes.budget.until):
                    await self.subscriptions.subscribe(request.agent, server, routes.subscription_uri(uri, server))
            except TimeoutError:
                raise errors.ServerTimedOut(server, "did not answer in time") from None
            return {}

        return await self._reply(request, request.payload, self._of_resource(request, routes, ask))

    async def unsubscribe(self, request: UnsubscribeResourceReq, call: Call) -> Answer:
        """End it, at the server that `serverId` names, or at all. Where there is no subscription, nothing is done."""
        server = request.serverId
        uri = self._routes(call).checked(request.payload.params.uri, server)
        self.subscriptions.unsubscribe(request.agent, server, uri)
        return self._enveloped(request, request.payload, server, {"result": {}})

    async def of_published(self, request: UnknownClientReq, call: Call) -> Answer:
        """`client:get_resources` of the published package (0.4): one page of one MCP server's own list, in its shape.

            request   {"computer", "mcp_server", "cursor"?, "agent", "req_id"}
            reply     {"resources": [...], "next_cursor"?, "req_id"}
            or        {"code": 4014 | 4015, "message", "mcp_server", "capability"?}

        The cursor is the MCP server's own. Keys of a resource are in snake_case, and only those that the package knows.
        Raises NotAllowed: the server is not for this caller; Malformed: a field is wrong, or the server does not know
        the cursor; TimedOut, Unavailable: the server does not answer, or is not running."""
        try:
            asked = _GetResourcesReq.model_validate(call.payload)
        except ValidationError as error:
            raise malformed(error) from None
        server = asked.mcp_server
        if server in self.access.hidden(call.caller):
            raise not_allowed("mcp_server")
        refusal: dict[str, Any] = {"code": 4014, "message": "MCP Server not registered", "mcp_server": server}
        if (supervisor := self.index.supervisors.get(server)) is None:
            return Answer(exact_json.written(refusal))
        if not supervisor.ready:
            raise Unavailable(f"MCP server {server!r} is not running ({supervisor.state})")
        if (resources := supervisor.resources) is None:
            message = "MCP Server does not support 'resources' capability"
            return Answer(exact_json.written({**refusal, "code": 4015, "message": message, "capability": "resources"}))
        try:
            page, following = await resources.list_page("resources", asked.cursor, timeout=Budget(call).left)
        except errors.RequestRefused as error:
            if asked.cursor is None:
                raise Unavailable(str(error)) from None
            raise refused("cursor", str(error)) from None
        except errors.ServerError as error:
            raise errors.flat(error) from None
        reply: dict[str, Any] = {"resources": list(filter(None, map(_published, page))), "req_id": asked.req_id}
        if following is not None:
            reply["next_cursor"] = following
        return Answer(exact_json.written(reply))

    def _routes(self, call: Call) -> Routes:
        return Routes(self.index, self.history, self.access.hidden(call.caller), call)

    async def _page(self, kind: Kind, request: ListReq, call: Call) -> Answered:
        server, params = request.serverId, request.payload.params
        cursor = params.cursor if params is not None else None
        after = None if cursor is None else read_position(cursor, kind, server)
        begin = "" if after is None else after.server
        items, left_out = await self._routes(call).lists(kind, server, begin=begin)
        if kind == "templates" and server is None:
            items = {**with_unique_names(items)}
        page = page_of(kind, items, after)
        for of, uri in page.left_out:
            self.events.warn(of, f"{self.events.shown(uri)!r} is too large to be listed; it is left out")
        result: dict[str, Any] = {LISTS[kind][1]: page.items}
        if page.next is not None:
            result["nextCursor"] = write_cursor(page.next)
        if left_out:
            result["meta"] = {LEFT_OUT: left_out}
        return server, result

    async def _of_listed(self, kind: Kind, name: str, request: GetPromptReq | CompleteReq, call: Call) -> Answered:
        """The answer of `serverId`, or of the server used last that lists the template or prompt; for a completion, the
        first one with values."""
        routes, is_get = self._routes(call), isinstance(request, GetPromptReq)
        servers = await routes.listing(kind, name, request.serverId)
        params = request.payload.params.model_dump(mode="json", by_alias=True, exclude_unset=True)

        async def ask(server: str) -> Json:
            lists = self.index.prompts(server) if kind == "prompts" else self.index.connection(server)
            give = lists.get_prompt if is_get else lists.complete
            return with_meta(await give(params, timeout=routes.budget.left))

        def completes_nothing(error: errors.ServerError) -> bool:
            codes = (types.METHOD_NOT_FOUND, types.INVALID_PARAMS, errors.RESOURCE_NOT_FOUND)
            return not is_get and isinstance(error, errors.RequestRefused) and error.code in codes

        return await _first(servers, ask, completes_nothing)

    async def _of_resource(
        self,
        request: ReadResourceReq | SubscribeResourceReq,
        routes: Routes,
        ask: Callable[[str, str], Awaitable[Json]],
    ) -> Answered:
        """The answer of the first server that has the resource and, for a subscription, announces its changes."""
        uri = routes.checked(request.payload.params.uri, request.serverId)
        servers = await routes.candidates(uri, request.serverId)
        return await _first(
            servers,
            lambda server: ask(server, uri),
            lambda error: isinstance(error, errors.NotSubscribable) or errors.is_not_found(error),
        )

    async def _reply(self, request: RequestEnvelope, payload: JsonRpcRequest, answer: Awaitable[Answered]) -> Answer:
        try:
            server, result = await answer
        except (errors.RequestRefused, errors.BadAnswer) as error:
            return self._enveloped(
                request, payload, error.server, {"error": errors.jsonrpc_error(payload.method, error)}
            )
        except errors.ServerError as error:
            raise errors.flat(error) from None
        return self._enveloped(request, payload, server, {"result": result})

    def _enveloped(self, request: RequestEnvelope, payload: JsonRpcRequest, server: str | None, answer: Json) -> Answer:
        named = {"serverId": server, "req_id": request.req_id}
        given = {name: value for name, value in named.items() if value is not None}
        reply = {
            "roomId": request.roomId,
            "computerId": self.name,
            **given,
            "payload": {"jsonrpc": "2.0", "id": payload.id, **answer},
        }
        return Answer(exact_json.written(reply))


def category_warnings(uri: str, result: Json) -> Iterator[str]:
    """The unknown categories of a page or element that was read."""
    if scheme_of(uri) != DPE:
        return
    text = first_text(result)
    if text is None or len(text) > PAGE_BYTES:  # reading it once more would take time from everything else
        return
    with suppress(ValueError):  # it is not a dpe:// URI, or not JSON
        if parse_dpe_uri(uri).level >= 2:  # from pages on there are elements
            yield from unknown_categories(orjson.loads(text))


async def _first(
    servers: Sequence[str], ask: Callable[[str], Awaitable[Json]], is_another: Callable[[errors.ServerError], bool]
) -> Answered:
    """Ask servers one after the other: the next one where the one before is not running, or `is_another` says so."""
    *others, last = servers
    for server in others:
        try:
            return server, await ask(server)
        except errors.ServerError as error:
            if not (isinstance(error, errors.ServerNotRunning) or is_another(error)):
                raise
    return last, await ask(last)


SHOWN: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("uri", "name", "description", "mime_type", "size", "meta"), True),
    "annotations": {"audience", "priority", "last_modified"},
}
"""What the published package knows of a resource."""


class _GetResourcesReq(AgentCallData):
    mcp_server: ServerName
    cursor: Cursor | None = None


def _published(item: object) -> dict[str, Any] | None:
    try:
        resource = types.Resource.model_validate(item)
    except ValidationError:
        return None
    shown = resource.model_dump(mode="json", exclude_none=True, include=SHOWN)
    if "meta" in shown:
        shown["_meta"] = shown.pop("meta")
    return shown


def resource_handlers(
    settings: ComputerSettings, fleet: Fleet, access: Access, resources: OfferedResources, tasks: Background
) -> dict[str, Handler]:
    """By event."""
    index, history, events = resources.index, resources.history, fleet.events
    own = ResourceHandlers(index, resources.subscriptions, history, access, events, settings.name)
    return {
        "client:get_desktop": Desktop(index, history, access, events, tasks, read_s=settings.read_s),
        "client:get_finder": Finder(resources.cache, index.documents, history, access, wait_s=settings.read_s),
        "client:resources/list": partial(own.page, "resources"),
        "client:resources/templates/list": partial(own.page, "templates"),
        "client:resources/read": own.read,
        "client:resources/subscribe": own.subscribe,
        "client:resources/unsubscribe": own.unsubscribe,
        "client:completion/complete": own.complete,
        "client:prompts/list": partial(own.page, "prompts"),
        "client:prompts/get": own.get_prompt,
        "client:get_resources": own.of_published,
    }
