"""The current list of resources of each MCP server, cached until the server announces a change; its templates, asked
for each time; and pages over the lists of all servers.

The cursor of a page names a server and how far its list was given, and holds nothing that an MCP server made: so it
survives restarts of that server. Where the list changes between two pages, an item may come twice or be left out:
`resources/list_changed` asks for the whole list again.
"""

import asyncio
import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import mcp_types as types
import orjson

from smcp_bus import exact_json
from smcp_computer.mcp.errors import (
    RequestRefused,
    ServerDied,
    ServerError,
    ServerNotRunning,
    ServerTimedOut,
    bad_field,
)
from smcp_computer.mcp.events import (
    ResourcesChanged,
    ServerEvent,
    ServerEvents,
    ServerGone,
    ServerReady,
    ServerRemoved,
)
from smcp_computer.mcp.requests import REQUEST_S
from smcp_computer.mcp.resources import Features, Json, Resources
from smcp_computer.mcp.supervisor import POLL_S, RELIST_S, Supervisor
from smcp_proto.backoff import Backoff
from smcp_proto.uris import WindowUri, host_of, window_uri

OPERATIONS: Final = ("get_desktop", "get_finder", "resources_list", "resources_templates_list")
"""The verbs that ask all servers."""
NOTHING: Final[Mapping[str, Json]] = MappingProxyType({})
Listing = Mapping[str, Json]
"""Resources by URI, in the server's order, each as the server sent it."""

AT_A_TIME: Final = 1000
"""URIs of a list that are parsed before others get a turn: some milliseconds."""


class Names:
    """The windows of a list, each with its first URI there, and the hosts: looked up without a walk over the list."""

    def __init__(self, uris: Iterable[str] = ()) -> None:
        self.windows: dict[WindowUri, str] = {}
        self.hosts: set[str] = set()
        for uri in uris:
            self.add(uri)

    def add(self, uri: str) -> None:
        window = window_uri(uri)
        if window is not None:
            self.windows.setdefault(window, uri)
        host = host_of(uri) if window is None else window.host
        if host is not None:
            self.hosts.add(host)


CURSOR_FIELD: Final = "payload.params.cursor"
NOT_GIVEN: Final = "is none that this list gave"

Kind = Literal["resources", "templates", "prompts"]
PAGE_ITEMS: Final = 100
PAGE_BYTES: Final = 1024 * 1024
"""A page goes on to the next one above it: the smallest clients take 4 MiB in one message. A larger item is left out,
so that it costs only itself."""
SEPARATOR: Final = "__"
SERVER_KEY: Final = "serverId"
"""The field of an item that names its server (computer.txt, resources chapter, 3, allows routing fields)."""

URI_KEY: Final[Mapping[Kind, str]] = {"resources": "uri", "templates": "uriTemplate", "prompts": "name"}


@dataclass
class _Server:
    listing: Listing = field(default_factory=lambda: NOTHING)
    names: Names = field(default_factory=Names)
    asked: float = 0.0
    """When it was asked for that list (loop time)."""
    listed_generation: int = -1
    """What `generation` was then."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is asked for its list."""
    generation: int = 0
    """How often its list changed, or may have: what was asked for before the last time is out of date."""
    announced: int = 0
    """How often it said itself that its list changed."""
    dirty: asyncio.Event = field(default_factory=asyncio.Event)
    keeping: "asyncio.Task[None] | None" = None
    """Takes its list anew whenever that changed."""


class ResourceIndex:
    """The lists are kept until their server announces a change. A server that announces none is listed at each use,
    and every `POLL_S`. `run` must be running.
    """

    def __init__(self, supervisors: Mapping[str, Supervisor], events: ServerEvents) -> None:
        self._supervisors = supervisors
        self._servers: dict[str, _Server] = {}
        """Those that were ready at least once."""
        self._keepers: asyncio.TaskGroup | None = None
        self._listeners: list[Callable[[str], None]] = []
        self._events = events
        self.skipped = dict.fromkeys(OPERATIONS, 0)
        """By operation: how often a server was skipped that has no resources."""
        self.left_out = dict.fromkeys(OPERATIONS, 0)
        """By operation: how often a server was left out that is not running, failed or was silent."""
        events.listen(self._on_event)

    def servers(self, *, subscribable: bool = False) -> list[str]:
        """The names of those that are ready and have resources; `subscribable`: and take part in desktop and finder."""
        every = ((name, self.features(name)) for name in sorted(self._supervisors))
        return [name for name, features in every if features and (features.subscribe or not subscribable)]

    def count_skipped(self, operation: str) -> list[str]:
        """Count the servers without resources for an operation over all servers, and return their names."""
        servers = sorted(self._supervisors.items())
        without = [name for name, server in servers if server.ready and server.resources is None]
        self.skipped[operation] += len(without)
        return without

    @property
    def capabilities(self) -> dict[str, Any]:
        """The wire's `Capabilities`, in both of the forms that are legal: flags, and `aggregate` with `byServer`."""
        by_server = {
            name: {"subscribe": features.subscribe, "listChanged": features.list_changed}
            for name in sorted(self._supervisors)
            if (features := self.features(name)) is not None
        }
        whole = {flag: any(said[flag] for said in by_server.values()) for flag in ("subscribe", "listChanged")}
        return {"resources": {**whole, "aggregate": whole, "byServer": by_server}}

    def connection(self, server: str) -> Resources:
        """For reading and subscribing. Raises ServerNotRunning: it is not ready, has no resources, or was removed."""
        resources = self._resources(server)
        if resources is None:
            raise ServerNotRunning(server, "is not ready, or has no resources")
        return resources

    def features(self, server: str) -> Features | None:
        resources = self._resources(server)
        return None if resources is None else resources.features

    def _resources(self, server: str) -> Resources | None:
        supervisor = self._supervisors.get(server)
        return None if supervisor is None else supervisor.resources

    def known(self, server: str) -> Listing:
        """Its last list since it started, from memory; empty before the first."""
        return self._servers[server].listing if server in self._servers else NOTHING

    def names(self, server: str) -> Names:
        """Of that list."""
        return self._servers[server].names if server in self._servers else Names()

    def announced(self, server: str) -> int:
        """How often it announced another list. That goes for its templates, too: MCP has no notification for them."""
        return self._servers[server].announced if server in self._servers else 0

    def is_listed(self, server: str) -> bool:
        return server in self._servers and self._servers[server].asked > 0

    async def list(self, server: str, timeout: float = REQUEST_S) -> Listing:
        """Its current list: from memory, or fetched where that may be outdated. Raises ServerError."""
        self.connection(server)
        loop, kept = asyncio.get_running_loop(), self._servers.setdefault(server, _Server())
        came = loop.time()

        def is_current(resources: Resources) -> bool:
            return kept.listed_generation == kept.generation and (resources.features.list_changed or kept.asked >= came)

        if is_current(self.connection(server)):
            return kept.listing
        try:
            async with asyncio.timeout(timeout), kept.lock:
                resources = self.connection(server)
                if is_current(resources):
                    return kept.listing
                asked, generation = loop.time(), kept.generation  # what changes from here on makes it old again
                found = await resources.list_all(timeout=timeout)
                self._events.warn(server, *found.problems)
                names = Names()
                for number, item in enumerate(found.items, 1):
                    names.add(item["uri"])
                    if number % AT_A_TIME == 0:
                        await asyncio.sleep(0)
                if self._resources(server) is not resources:
                    raise ServerDied(server, "went away before it answered")
                kept.listing = MappingProxyType({item["uri"]: item for item in found.items})
                kept.asked, kept.listed_generation, kept.names = asked, generation, names
        except TimeoutError:
            raise ServerTimedOut(server, "did not list its resources in time") from None
        self._tell(server)
        return kept.listing

    async def list_known(self, servers: Iterable[str]) -> None:
        """Return when the lists of those of the servers that have resources were taken, or could not be."""
        await asyncio.gather(*(self.list(name) for name in servers if self.features(name)), return_exceptions=True)

    async def templates(self, server: str, timeout: float = REQUEST_S) -> tuple[Json, ...]:
        """Its templates, asked for now. Raises as `list`."""
        try:
            found = await self.connection(server).all_templates(timeout=timeout)
        except RequestRefused as error:
            if error.code != types.METHOD_NOT_FOUND:
                raise
            return ()  # a server need not have any
        self._events.warn(server, *found.problems)
        return found.items

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call it with the name of each server whose list was taken anew, or that came or went. It must not block."""
        self._listeners.append(listener)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as keepers:
            self._keepers = keepers
            for name, server in self._servers.items():
                self._keep_current(name, server)
            await asyncio.get_running_loop().create_future()  # until cancelled

    def _keep_current(self, name: str, server: _Server) -> None:
        if self._keepers is not None and server.keeping is None:
            server.keeping = self._keepers.create_task(self._keep(name, server), name=f"resources:{name}")

    async def _keep(self, name: str, server: _Server) -> None:
        backoff = Backoff()
        while True:
            features = self.features(name)
            tells = features is None or features.list_changed  # one that is not ready sets `dirty` when it is
            with suppress(TimeoutError):
                async with asyncio.timeout(None if tells else POLL_S):
                    await server.dirty.wait()
            server.dirty.clear()
            pause = RELIST_S
            try:
                await self.list(name)
            except ServerNotRunning:
                continue  # it has none, or comes back
            except ServerError as error:
                if not isinstance(error, ServerDied):
                    state = "may be old" if self.is_listed(name) else "is not known"
                    self._events.warn(name, f"its list of resources {state}: it {error.what}")
                server.dirty.set()
                pause = backoff.next()
            else:
                backoff.reset()
            await asyncio.sleep(pause)

    def _on_event(self, event: ServerEvent) -> None:
        server = self._servers.setdefault(event.server, _Server())
        match event:
            case ServerRemoved(name):
                del self._servers[name]
                if server.keeping is not None:
                    server.keeping.cancel()
            case ServerReady() | ServerGone():
                server.generation += 1
                server.listing, server.asked, server.names = NOTHING, 0.0, Names()
                if isinstance(event, ServerReady):
                    server.dirty.set()
                    self._keep_current(event.server, server)
                self._tell(event.server)
            case ResourcesChanged():
                server.generation += 1
                server.announced += 1
                server.dirty.set()
            case _:
                pass

    def _tell(self, server: str) -> None:
        for listener in self._listeners:
            listener(server)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a listing goes on."""

    kind: Kind
    server: str
    begin: int
    """Index (from 0) in its server's list of the first item that was not given."""


def write_cursor(position: Position) -> str:
    fields = [position.kind[0], position.server, position.begin]
    return base64.urlsafe_b64encode(orjson.dumps(fields)).decode().rstrip("=")


def read_cursor(cursor: str, kind: Kind, server: str | None = None) -> Position:
    """Read a cursor of a list of that kind, of one server or (None) of all.

    Raises:
        Malformed: it is none that `write_cursor` gave for such a list; `details.field` is `payload.params.cursor`.
    """
    try:
        raw = cursor.encode("ascii")
        fields: Any = orjson.loads(base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True))
    except ValueError:
        raise bad_field(CURSOR_FIELD, NOT_GIVEN) from None
    match fields:
        case [str(letter), str(of), int(begin)] if (
            letter == kind[0] and server in (None, of) and begin >= 0 and not isinstance(begin, bool)
        ):
            return Position(kind, of, begin)
    raise bad_field(CURSOR_FIELD, NOT_GIVEN)


@dataclass(slots=True)
class Page:
    items: list[Json] = field(default_factory=list)
    next: Position | None = None
    """None: this was the last one."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """(server, URI) of items that are too large; for the log."""


def page_of(kind: Kind, lists: Mapping[str, Sequence[Json]], after: Position | None = None) -> Page:
    """The page behind `after` over the lists of all servers, in order of the servers' names. Each item names its
    server.
    """
    page, size = Page(), 0
    for server in sorted(lists):
        if after is not None and server < after.server:
            continue
        begin = after.begin if after is not None and server == after.server else 0
        for number, item in enumerate(lists[server][begin:], begin):
            length = len(exact_json.written(item))
            if length > PAGE_BYTES:
                page.left_out.append((server, item[URI_KEY[kind]]))
                continue
            if len(page.items) == PAGE_ITEMS or (page.items and size + length > PAGE_BYTES):
                page.next = Position(kind, server, number)
                return page
            page.items.append({**item, SERVER_KEY: server})
            size += length
    return page


def with_unique_names(lists: Mapping[str, Sequence[Json]]) -> dict[str, list[Json]]:
    """The templates of all servers; a name that several servers use is prefixed by the server's: `<server>__<name>`."""
    users = Counter(name for items in lists.values() for name in set(map(_name, items)))
    return {
        server: [
            {**item, "name": f"{server}{SEPARATOR}{name}"} if (name := _name(item)) and users[name] > 1 else item
            for item in items
        ]
        for server, items in lists.items()
    }


def _name(item: Json) -> str:
    name = item.get("name")
    return name if isinstance(name, str) else ""
