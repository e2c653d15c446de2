"""The current list of resources of each MCP server, cached until the server announces a change; its templates, asked
for each time; and pages over the lists of all servers.

The cursor of a page names a server and how far its list was given, and holds nothing that an MCP server made: so it
survives restarts of that server. Where the list changes between two pages, an item may come twice or be left out:
`resources/list_changed` asks for the whole list again.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import mcp_types as types

from smcp_bus import exact_json
from smcp_computer.mcp import events
from smcp_computer.mcp.errors import RequestRefused, ServerDied, ServerError, ServerNotRunning, ServerTimedOut
from smcp_computer.mcp.resources import LISTS, REQUEST_S, Json, Kind, Lists, Resources
from smcp_computer.mcp.supervisor import RELIST_S, Supervisor
from smcp_proto.finder import Document
from smcp_proto.uris import DPE, DpeUri, WindowUri, host_of, scheme_of, window_uri, without_query
from smcp_proto.validation import CURSOR_FIELD, read_cursor, refused
from smcp_service.lifecycle import Background

OPERATIONS: Final = ("get_desktop", "get_finder", "resources_list", "resources_templates_list")
"""The verbs that ask all servers."""
LIST_S: Final = 5.0
"""How long a server may take to list where several are asked: a silent one must not use up the time of the others."""
MAX_BYTES: Final = 32 * 1024
"""The limit on one document's metadata: 100 of them have to fit into one message of a small client (4 MiB)."""


class Listing(dict[str, Json]):
    """Resources by URI, in the server's order, each as the server sent it. It is not changed. `windows` and `documents`
    have the first URI of each; `hosts` are those of both; `problems` are for the log."""

    def __init__(self, server: str = "", items: Iterable[Json] = ()) -> None:
        super().__init__((item["uri"], item) for item in items)
        self.windows: dict[WindowUri, str] = {}
        self.documents: dict[DpeUri, tuple[str, Document]] = {}
        self.hosts: set[str] = set()
        self.problems: list[str] = []
        for uri, resource in self.items():
            window = window_uri(uri)
            host = host_of(uri) if window is None else window.host
            if window is not None:
                self.windows.setdefault(window, uri)
            elif scheme_of(uri) == DPE:
                document = _listed(server, uri, resource)
                if document is not None:
                    self.documents.setdefault(document.uri, (uri, document))
                elif host is None:
                    self.problems.append(f"lists {uri!r:.200}, which is not a dpe:// URI")
            if host is not None:
                self.hosts.add(host)

    def find(self, uri: str) -> str | None:
        """The URI to ask this server for; None: it does not list the resource. A window is known by host and path
        (desktop.txt, Window URI). A page or an element belongs to its document, whose query only chooses a format."""
        if uri in self:
            return uri
        if (window := window_uri(uri)) is not None:
            return self.windows.get(window)
        path = without_query(uri)
        is_listed = path in self or "/".join(path.split("/", 4)[:4]) in self
        return uri if is_listed and scheme_of(uri) == DPE else None


def _listed(server: str, uri: str, resource: Json) -> Document | None:
    """The document as far as `resources/list` describes it; None where it is none."""
    title = resource.get("title") or resource.get("name")
    annotations = resource.get("annotations")
    modified = annotations.get("lastModified") if isinstance(annotations, Mapping) else None
    listed = {"title": title, "summary": resource.get("description"), "last_modified": modified}
    short = {name: text for name, text in listed.items() if isinstance(text, str) and len(text) <= MAX_BYTES // 8}
    return Document.of(server, short, listed=uri)[0]


NOTHING: Final = Listing()

PAGE_ITEMS: Final = 100
PAGE_BYTES: Final = 1024 * 1024
"""A page goes on to the next one above it: the smallest clients take 4 MiB in one message. A larger item is left out,
so that it costs only itself."""
SEPARATOR: Final = "__"
SERVER_KEY: Final = "serverId"
"""The field of an item that names its server (computer.txt, resources chapter, 3, allows routing fields)."""


@dataclass
class _Server:
    listing: Listing = field(default_factory=Listing)
    asked: float = 0.0
    """When it was asked for that list (loop time); 0: it has none in this life."""
    listed_generation: int = -1
    """What `generation` was then."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is asked for its list."""
    generation: int = 0
    """How often its list changed, or may have: what was asked for before the last time is out of date."""
    is_followed: bool = False
    """A task takes its list anew."""


@dataclass(eq=False)
class ResourceIndex:
    """The lists are kept until their server announces a change, and taken anew then. A server that announces none is
    listed at each use."""

    supervisors: Mapping[str, Supervisor]
    _events: events.ServerEvents
    _tasks: Background

    def __post_init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        """Those that were ready at least once."""
        self.skipped = dict.fromkeys(OPERATIONS, 0)
        """By operation: how often a server was skipped that has no resources."""
        self.left_out = dict.fromkeys(OPERATIONS, 0)
        """By operation: how often a server was left out that is not running, failed or was silent."""
        self._events.listen(self._on_event)

    def servers(self, *, subscribable: bool = False) -> list[str]:
        """The names of those that are ready and have resources; `subscribable`: and take part in desktop and finder."""
        every = ((name, self.features(name)) for name in sorted(self.supervisors))
        return [name for name, features in every if features and (features.subscribe or not subscribable)]

    def count(self, operation: str, left_out: int = 0) -> None:
        """Count, for metrics, the servers that an operation skipped (no resources) or left out."""
        self.skipped[operation] += sum(each.ready and each.resources is None for each in self.supervisors.values())
        self.left_out[operation] += left_out

    @property
    def capabilities(self) -> dict[str, Any]:
        """The wire's `Capabilities`, in both of the forms that are legal: flags, and `aggregate` with `byServer`. The
        whole office sees them, so a server with `allow` is not named."""
        by_server = {
            name: {"subscribe": bool(features.subscribe), "listChanged": bool(features.list_changed)}
            for name in sorted(self.supervisors)
            if (features := self.features(name)) is not None
        }
        whole = {flag: any(said[flag] for said in by_server.values()) for flag in ("subscribe", "listChanged")}
        named = {name: said for name, said in by_server.items() if self.is_for_all(name)}
        return {"resources": {**whole, "aggregate": whole, "byServer": named}}

    def is_for_all(self, server: str) -> bool:
        """Whether every member of the office may see it."""
        return server not in self.supervisors or self.supervisors[server].host.allow is None

    def connection(self, server: str) -> Resources:
        """For reading and subscribing. Raises ServerNotRunning: it is not ready, has no resources, or was removed."""
        resources = self._resources(server)
        if resources is None:
            raise ServerNotRunning(server, "is not ready, or has no resources")
        return resources

    def prompts(self, server: str) -> Lists:
        """Raises ServerNotRunning: it is not ready, has no prompts, or was removed."""
        if server not in self.supervisors or (prompts := self.supervisors[server].prompts) is None:
            raise ServerNotRunning(server, "went away before it was asked")
        return prompts

    def features(self, server: str) -> types.ResourcesCapability | None:
        resources = self._resources(server)
        return None if resources is None else resources.capability

    def _resources(self, server: str) -> Resources | None:
        supervisor = self.supervisors.get(server)
        return None if supervisor is None else supervisor.resources

    def known(self, server: str) -> Listing:
        """Its last list since it started, from memory; empty before the first."""
        return self._servers[server].listing if server in self._servers else NOTHING

    def is_listed(self, server: str) -> bool:
        return server in self._servers and self._servers[server].asked > 0

    async def list(self, server: str, timeout: float = REQUEST_S) -> Listing:
        """Its current list: from memory, or fetched where that may be outdated. Raises ServerError."""
        self.connection(server)
        loop, kept = asyncio.get_running_loop(), self._servers.setdefault(server, _Server())
        came = loop.time()
        try:
            async with asyncio.timeout(timeout), kept.lock:
                resources = self.connection(server)
                is_current = resources.capability.list_changed or kept.asked >= came
                if kept.listed_generation == kept.generation and is_current:
                    return kept.listing
                asked, generation = loop.time(), kept.generation  # what changes from here on makes it old again
                found = await resources.list_all("resources", timeout=timeout)
                self._events.warn(server, *found.problems)
                listing = await asyncio.to_thread(Listing, server, found.items)  # some 100 ms for the longest one
                self._events.warn(server, *map(self._events.shown, listing.problems))
                if self._resources(server) is not resources:
                    raise ServerDied(server, "went away before it answered")
                kept.listing, kept.asked, kept.listed_generation = listing, asked, generation
        except TimeoutError:
            raise ServerTimedOut(server, "did not list its resources in time") from None
        self._events.tell(events.ResourcesListed(server))
        return kept.listing

    async def items(self, kind: Kind, server: str, timeout: float) -> Sequence[Json]:
        """The server's items of a kind; only resources come from memory. Raises as `list`."""
        if kind == "resources":
            return tuple((await self.list(server, timeout)).values())
        lists = self.prompts(server) if kind == "prompts" else self.connection(server)
        try:
            found = await lists.list_all(kind, timeout=timeout)
        except RequestRefused as error:
            if kind == "prompts" or error.code != types.METHOD_NOT_FOUND:
                raise
            return ()  # templates are optional
        self._events.warn(server, *found.problems)
        return found.items

    async def items_of_each(self, kind: Kind, servers: Sequence[str], timeout: float) -> dict[str, Sequence[Json]]:
        """`items` by server, without those that fail."""
        found: dict[str, Sequence[Json]] = {}

        async def one(server: str) -> None:
            try:
                found[server] = await self.items(kind, server, min(timeout, LIST_S))
            except ServerError as error:
                self._events.warn(server, f"left out of a list: {error}")

        await asyncio.gather(*map(one, servers))
        return found

    async def documents(self, timeout: float) -> Mapping[str, Listing]:
        """The lists of the servers that take part in the finder; a failing one keeps its last list."""
        servers = self.servers(subscribable=True)
        self.count("get_finder", len(servers) - len(await self.items_of_each("resources", servers, timeout)))
        return {server: self.known(server) for server in servers}

    async def _follow(self, name: str, server: _Server) -> None:
        generation = -1
        while generation != server.generation:
            generation = server.generation
            try:
                await self.list(name)
            except (ServerNotRunning, ServerDied):
                pass  # it has none, or comes back
            except ServerError as error:
                state = "may be old" if self.is_listed(name) else "is not known"
                self._events.warn(name, f"its list of resources {state}: it {error.what}")
            await asyncio.sleep(RELIST_S)
        server.is_followed = False

    def _on_event(self, event: events.ServerEvent) -> None:
        server = self._servers.setdefault(event.server, _Server())
        match event:
            case events.ServerRemoved(name):
                del self._servers[name]
            case events.ServerReady() | events.ServerGone() | events.ResourcesChanged():
                server.generation += 1
                if not isinstance(event, events.ResourcesChanged):
                    server.listing, server.asked = NOTHING, 0.0
                if not (server.is_followed or isinstance(event, events.ServerGone)):
                    server.is_followed = True
                    self._tasks.start(self._follow(event.server, server), name=f"resources:{event.server}")


class Position(NamedTuple):
    """Where a listing goes on: at the item of a server with this index (from 0) in its list."""

    kind: Kind
    server: str
    begin: int


def read_position(cursor: str, kind: Kind, server: str | None = None) -> Position:
    """Read a cursor of a list of that kind, of one server or (None) of all. Raises Malformed: it is none that
    `write_cursor` made of a position in such a list; `details.field` is `payload.params.cursor`."""
    with suppress(ValueError):
        match read_cursor(cursor):
            case [str(of_kind), str(of), int(begin)] if of_kind == kind and server in (None, of) and begin >= 0:
                return Position(kind, of, begin)
    raise refused(CURSOR_FIELD, "is not a cursor of this list")


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
                page.left_out.append((server, item[LISTS[kind][2]]))
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
