"""The resources of one connection to an MCP server: listed, read, subscribed to; and its prompts. Raw JSON as it came.

Servers of MCP 2025 get one `resources/subscribe` per resource. Servers of MCP 2026 get one stream
(`subscriptions/listen`) whose filter cannot be changed: for other resources a new stream is opened before the old one
is closed, so that no update is lost. A new stream may leave out resources of the one before (`ResourcesUnsubscribed`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

import anyio
import anyio.abc
import mcp_types as types
from mcp.client.subscriptions import ResourcesListChanged, SubscriptionLost, ToolsListChanged
from mcp.client.subscriptions import ResourceUpdated as Updated
from mcp.shared.exceptions import MCPError

from smcp_bus import exact_json
from smcp_computer.mcp.errors import BadAnswer, NotSubscribable, ServerDied, ServerError, ServerTimedOut
from smcp_computer.mcp.events import ResourcesChanged, ResourcesUnsubscribed, ResourceUpdated, ServerEvent, ToolsChanged
from smcp_proto.backoff import Backoff
from smcp_proto.catalog import QUERY_S
from smcp_service.lifecycle import set_within

if TYPE_CHECKING:
    from smcp_computer.mcp.session import ServerConnection

_log = logging.getLogger("smcp_computer.mcp.listen")

Json = Mapping[str, Any]
"""An object as MCP gives it: camelCase keys, nothing added or dropped."""

REQUEST_S: Final = QUERY_S
"""How long a server may take over one request, or one list with all its pages."""
ONE_OF_MANY_S: Final = 10.0
"""For a subscription, or the metadata of one document. Shorter than for other requests: a silent server must not hold
the few places for them."""
MAX_ITEMS: Final = 50_000
MAX_FEW: Final = 1000
"""Templates, or prompts: templates are looked through one by one for a URI that no server lists, and a person chooses
one of the prompts."""
LIST_BYTES: Final = 16 * 1024 * 1024
"""Of one list with all its pages: 300 for each item. It stays in memory, in several times its bytes."""
AT_ONCE: Final = 8
"""Requests of one kind that one server gets at a time: to subscribe, for windows, or for metadata of documents. More
only queue up in it, and a few hide the way to it."""
STEADY_S: Final = 10.0
"""A server that was ready for so long, or a stream that was open for so long, is not one that always ends."""
EVENTS: Final = {ToolsListChanged: ToolsChanged, ResourcesListChanged: ResourcesChanged}
DRAIN_S: Final = 0.5
"""How long the old stream is read beside the new one: over HTTP an earlier notification on it may arrive late."""


Kind = Literal["resources", "templates", "prompts"]
LISTS: Final[Mapping[Kind, tuple[str, str, str]]] = {
    "resources": ("resources/list", "resources", "uri"),
    "templates": ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    "prompts": ("prompts/list", "prompts", "name"),
}
"""MCP's method, the field of its result, and the field that identifies an item."""


Item = TypeVar("Item")


class Listed(NamedTuple, Generic[Item]):
    """A whole list without what is not valid in it, and what was left out, in words for the user of this host."""

    items: tuple[Item, ...]
    problems: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """The names of tools that were left out."""


@dataclass(eq=False)
class ListenStream:
    """Subscriptions of a server of MCP 2026. `run` must be running."""

    _connection: "ServerConnection"
    _notify: Callable[[ServerEvent], None]

    def __post_init__(self) -> None:
        self._server, offered = self._connection.server, self._connection.client.server_capabilities
        self._tools = offered.tools is not None and offered.tools.list_changed is True
        self._resources = offered.resources is not None and offered.resources.list_changed is True
        """Whether the server announces their changes."""
        self._wanted: dict[str, asyncio.Future[None]] = {}
        """By URI: done once the server has agreed."""
        self._needed = asyncio.Event()
        """Another stream is needed than the open one."""
        self._open: anyio.CancelScope | None = None
        self._drained: anyio.CancelScope | None = None
        """The scope of the replaced stream, read until it is drained."""
        self._is_broken = False
        """A stream broke, or could not be opened: it is opened again after a pause, or with the next request."""
        self._missed = False
        """A stream broke: changes may have been missed."""
        self._backoff = Backoff()
        self._closed: ServerError | None = None
        """Why there never will be a stream again."""
        if self._tools or self._resources:
            self._needed.set()

    async def subscribe(self, uri: str) -> None:
        if self._closed is not None:
            raise self._closed
        agreed = self._wanted[uri] = asyncio.get_running_loop().create_future()
        self._needed.set()
        try:
            await agreed
        except asyncio.CancelledError:
            self._wanted.pop(uri, None)
            raise

    def unsubscribe(self, uri: str) -> None:
        self._wanted.pop(uri, None)
        self._needed.set()

    async def run(self) -> None:
        """Keep the stream open until cancelled, or until the server says that it has none."""
        try:
            async with anyio.create_task_group() as tasks:
                while self._closed is None:
                    await self._needed.wait()
                    self._needed.clear()
                    if self._is_broken and all(agreed.done() for agreed in self._wanted.values()):
                        await set_within(self._backoff.next(), self._needed)
                        self._needed.clear()
                    self._is_broken = False
                    await self._reopen(tasks)
        finally:
            self._closed = self._closed or ServerDied(self._server, "went away before it answered")
            self._answer(self._wanted.copy(), frozenset(), self._closed)

    async def _reopen(self, tasks: anyio.abc.TaskGroup) -> None:
        wanted, is_first = self._wanted.copy(), self._open is None
        if not (wanted or self._tools or self._resources):
            self._replace(None)
            return
        try:
            honored = await tasks.start(self._stream, sorted(wanted))
            if self._open is None and not honored:
                raise SubscriptionLost  # noqa: TRY301 -- it ended without refusing the resources
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            asked = {uri: agreed for uri, agreed in wanted.items() if not agreed.done()}
            self._answer(asked, frozenset(), self._failure(error))
            self._retry()
            return
        self._answer(wanted, honored, NotSubscribable(self._server, "does not announce changes of this resource"))
        if self._open is None or not (is_first or self._missed):
            return
        missed, self._missed = self._missed, False
        if self._tools:
            self._notify(ToolsChanged(self._server))
        if missed and self._resources:  # before the first stream only tools were listed
            self._notify(ResourcesChanged(self._server))
        for uri in sorted(self._wanted) if missed else ():
            self._notify(ResourceUpdated(self._server, uri))

    def _answer(self, wanted: Mapping[str, asyncio.Future[None]], honored: frozenset[str], why: ServerError) -> None:
        ended = set()
        for uri, agreed in wanted.items():
            if uri in honored:
                if not agreed.done():
                    agreed.set_result(None)
            elif self._wanted.get(uri) is agreed:  # else it was given up, or asked for anew
                del self._wanted[uri]
                if agreed.done():
                    ended.add(uri)
                else:
                    agreed.set_exception(why)
        if ended:
            self._notify(ResourcesUnsubscribed(self._server, frozenset(ended)))

    async def _stream(self, uris: Sequence[str], *, task_status: anyio.abc.TaskStatus[frozenset[str]]) -> None:
        is_open, began = False, anyio.current_time()
        with anyio.CancelScope() as scope:
            try:
                async with self._connection.client.listen(
                    tools_list_changed=self._tools,
                    resources_list_changed=self._resources,
                    resource_subscriptions=uris,
                ) as events:
                    is_open = True
                    self._replace(scope)  # before it is read: it may end at once
                    task_status.started(frozenset(events.honored.resource_subscriptions or ()))
                    async for change in events:
                        if isinstance(change, Updated):
                            self._notify(ResourceUpdated(self._server, change.uri))
                        elif (event := EVENTS.get(type(change))) is not None:
                            self._notify(event(self._server))
            except (SubscriptionLost, MCPError):
                if not is_open:
                    raise
        if scope is self._open and not scope.cancel_called:
            self._open, self._missed = None, True
            if anyio.current_time() - began >= STEADY_S:
                self._backoff.reset()
            self._retry()

    def _failure(self, error: Exception) -> ServerError:
        if not isinstance(error, MCPError):
            return ServerTimedOut(self._server, "did not open a stream of changes")
        why = self._connection.translated(error)
        if error.code == types.METHOD_NOT_FOUND:
            _log.info("MCP server %r does not announce changes of its lists", self._server)
            why = self._closed = NotSubscribable(self._server, "does not announce changes of its resources")
        elif isinstance(why, ServerDied):
            self._closed = why
        return why

    def _replace(self, scope: anyio.CancelScope | None) -> None:
        if self._drained is not None:
            self._drained.cancel()  # one at a time, however often other resources are asked for
        self._drained, self._open = self._open, scope
        if self._drained is not None:
            self._drained.deadline = anyio.current_time() + DRAIN_S

    def _retry(self) -> None:
        if self._open is None:
            self._is_broken = True
            self._needed.set()


@dataclass(eq=False)
class Lists:
    """Every method raises `ServerError`s: `RequestRefused`, `ServerTimedOut`, `ServerDied`, `BadAnswer`. Time-outs are
    seconds.
    """

    _connection: "ServerConnection"

    @property
    def server(self) -> str:
        return self._connection.server

    async def complete(self, params: Json, *, timeout: float = REQUEST_S) -> dict[str, Any]:
        """The result of `completion/complete`; `params` are MCP's (`ref`, `argument`, `context`)."""
        return await self._connection.send("completion/complete", params, timeout=timeout)

    async def get_prompt(self, params: Json, *, timeout: float = REQUEST_S) -> dict[str, Any]:
        """The result of `prompts/get`; `params` are MCP's (`name`, `arguments`). Its `messages` are a list."""
        return await self._with("messages", "prompts/get", params, timeout)

    async def list_page(
        self, kind: Kind, cursor: str | None = None, *, timeout: float = REQUEST_S
    ) -> tuple[list[Any], str | None]:
        """One page, and the cursor of the next one."""
        method, key, _ = LISTS[kind]
        result = await self._with(key, method, {} if cursor is None else {"cursor": cursor}, timeout)
        if not isinstance(following := result.get("nextCursor"), str | None):
            raise BadAnswer(self.server, "sent a cursor that is not a string")
        return result[key], following

    async def list_all(self, kind: Kind, *, timeout: float = REQUEST_S) -> Listed[Json]:
        """Objects with a string as URI, template or name; none stands twice."""
        _, key, name = LISTS[kind]
        most = MAX_ITEMS if kind == "resources" else MAX_FEW
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        found: dict[str, Json] = {}
        problems: list[str] = []
        size, cursor = 0, None
        while True:
            left = deadline - loop.time()
            if left <= 0:
                raise ServerTimedOut(self.server, f"did not list its {key} in time")
            page, cursor = await self.list_page(kind, cursor, timeout=left)
            known = len(found)
            for item in page:
                identity = item.get(name) if isinstance(item, dict) else None
                if not isinstance(identity, str):
                    problems.append(f"an item of its {key} has no {name}; it is left out")
                elif identity in found:
                    problems.append(f"lists {self._connection.watch.redactor.shown(identity)} twice; the first counts")
                else:
                    found[identity] = item
            size += len(exact_json.written(page))
            if cursor is None and len(found) <= most:
                break
            if len(found) >= most or size > LIST_BYTES or (page and len(found) == known):
                problems.append(f"its list of {key} is too long, or has no end; {min(len(found), most)} are taken")
                break
        return Listed(tuple(found.values())[:most], tuple(dict.fromkeys(problems)))

    async def _with(self, key: str, method: str, params: Json, timeout: float) -> dict[str, Any]:
        result = await self._connection.send(method, params, timeout=timeout)
        if not isinstance(result.get(key), list):
            raise BadAnswer(self.server, f"sent no list of {key}")
        return result


@dataclass(eq=False)
class Resources(Lists):
    """`stream`: of a server of MCP 2026."""

    capability: types.ResourcesCapability
    _stream: ListenStream | None

    def __post_init__(self) -> None:
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def read(self, uri: str, *, timeout: float = REQUEST_S) -> dict[str, Any]:
        """The result of `resources/read`. Its `contents` are a list; what is in it is not checked."""
        return await self._with("contents", "resources/read", {"uri": uri}, timeout)

    async def subscribe(self, uri: str) -> None:
        """Ask for `ResourceUpdated` of it as long as the connection lasts."""
        stream = self._stream
        await self._in_time(self._sent("resources/subscribe", uri) if stream is None else stream.subscribe(uri))

    async def unsubscribe(self, uri: str) -> None:
        if self._stream is None:
            await self._in_time(self._sent("resources/unsubscribe", uri))
        else:
            self._stream.unsubscribe(uri)

    async def _sent(self, method: str, uri: str) -> None:
        async with self._at_once:
            await self._connection.send(method, {"uri": uri}, timeout=REQUEST_S)

    async def _in_time(self, asking: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(ONE_OF_MANY_S):
                await asking
        except TimeoutError:
            raise ServerTimedOut(self.server, "did not answer in time") from None
