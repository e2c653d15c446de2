"""Chooses the MCP servers to ask for a URI, for a template or prompt, or for all that they list; and tells how long the
request lets them take, and how large the reply may be."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, TypeVar

from smcp_bus.dispatch import Call
from smcp_computer.access import not_allowed
from smcp_computer.mcp.errors import ServerError, ServerNotRunning, bad_field, not_found, not_supported
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.resources import Json, Prompts
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.index import Kind, Listing, Names, ResourceIndex
from smcp_computer.tools import History
from smcp_proto.errors import Unavailable
from smcp_proto.sorting import server_order
from smcp_proto.tool_results import time_limit
from smcp_proto.uris import (
    DPE,
    HOSTED,
    WINDOW,
    host_of,
    parse_dpe_uri,
    parse_window_uri,
    scheme_of,
    window_uri,
    without_query,
)
from smcp_service.settings import did_you_mean

MOST_NAMED: Final = 20
"""Servers that an error names. An error of more than 16 KiB would not reach who asked."""


@dataclass(frozen=True)
class Served:
    server: str
    uris: Collection[str]
    names: Names
    """Of these URIs."""
    templates: Sequence[str] = ()
    """Their `uriTemplate`."""

    def has_host(self, host: str | None) -> bool:
        """Whether it lists something of this host."""
        return host is not None and (host in self.names.hosts or host in map(template_host, self.templates))

    def listed(self, uri: str) -> str | None:
        """The listed URI for `uri`; None: it lists none. A window is known by host and path (desktop.txt, Window URI).
        The query of a `dpe://` URI only chooses a format, and is kept."""
        if uri in self.uris:
            return uri
        if scheme_of(uri) == WINDOW:
            window = window_uri(uri)
            return None if window is None else self.names.windows.get(window)
        return uri if without_query(uri) in self.uris else None


def candidates(uri: str, servers: Sequence[Served], history: Sequence[str]) -> list[str]:
    """The servers that may serve `uri`: those that list it. Where none does: for `dpe://` those that list its document;
    else for `dpe://` and `window://` those that list something of its host, for others those of which a template fits.

    The one used last comes first, then by name.
    """
    document = "/".join(without_query(uri).split("/", 4)[:4])
    found = listed_by(uri, servers)
    if not found and scheme_of(uri) == DPE:
        found = [each.server for each in servers if document in each.uris]
    if not found and scheme_of(uri) in HOSTED:
        found = [each.server for each in servers if each.has_host(host_of(uri))]
    elif not found:
        found = [each.server for each in servers if any(fits(template, uri) for template in each.templates)]
    return server_order(found, history)


def listed_by(uri: str, servers: Iterable[Served]) -> list[str]:
    return [each.server for each in servers if each.listed(uri) is not None]


def template_candidates(template: str, servers: Sequence[Served], history: Sequence[str]) -> list[str]:
    """The servers that may complete the arguments of a template: those that list it, else those of its host."""
    found = [each.server for each in servers if template in each.templates]
    if not found:
        found = [each.server for each in servers if each.has_host(template_host(template))]
    return server_order(found, history)


def template_host(template: str) -> str | None:
    """The host of a `dpe://` or `window://` template; None for others, and where the host is not fixed."""
    scheme, separator, rest = template.partition("://")
    host = rest.partition("/")[0]
    return host_of(f"{scheme}{separator}{host}") if "{" not in host else None


def fits(template: str, uri: str) -> bool:
    """Whether a URI may be an expansion of a template (RFC 6570): it has the fixed parts in their order."""
    first, *expressions = template.split("{")
    others = [expression.partition("}")[2] for expression in expressions]
    if not others:
        return uri == first
    if not uri.startswith(first):
        return False
    at, last = len(first), others.pop()
    for part in others:
        found = uri.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(uri) - len(last) >= at and uri.endswith(last)


def is_same(one: str, other: str) -> bool:
    """Whether two URIs name one resource: they are equal, or name one window."""
    window = window_uri(one)
    return one == other or (window is not None and window == window_uri(other))


def checked_uri(uri: str) -> str:
    """The URI to ask a server for, where none lists it just so.

    A `dpe://` URI has to be one (finder.txt, 校验规则), and keeps its query; of a `window://` URI the query is dropped.

    Raises:
        Malformed: it is a `dpe://` or `window://` URI that is not valid. `details.reason` begins with the part or the
            parameter that is wrong.
    """
    try:
        match scheme_of(uri):
            case "dpe":
                parse_dpe_uri(uri)
            case "window":
                parse_window_uri(uri)
                return without_query(uri)
    except ValueError as error:
        raise bad_field("payload.params.uri", error) from None
    return uri


Found = TypeVar("Found")

LIST_S: Final = 5.0
"""How long a server may take to list where several are asked: a silent one must not use up the time of the others."""
VERB: Final[Mapping[Kind, str]] = {"resources": "resources_list", "templates": "resources_templates_list"}
NO_TEMPLATES: Final[tuple[Json, ...]] = ()


class Budget:
    """The time that a request leaves, at most `most` seconds; `until`: when it is over, in loop time."""

    def __init__(self, call: Call, *, most: float = math.inf) -> None:
        self._loop: Final = asyncio.get_running_loop()
        left = call.deadline - self._loop.time()
        self.until: Final = self._loop.time() + min(time_limit(left, left), most)

    @property
    def left(self) -> float:
        """Seconds; 0 where it is over."""
        return max(0.0, self.until - self._loop.time())


class Directory:
    def __init__(
        self, supervisors: Mapping[str, Supervisor], index: ResourceIndex, history: History, events: ServerEvents
    ) -> None:
        self._supervisors = supervisors
        self._index = index
        self._history = history
        self._events = events
        self.hidden: frozenset[str] = frozenset()
        """Servers that are not for this caller."""

    def without(self, hidden: frozenset[str]) -> "Directory":
        """The same for a caller who may not use these servers."""
        if not hidden:
            return self
        other = copy(self)
        other.hidden = hidden
        return other

    def check(self, server: str, kind: Kind = "resources") -> None:
        """Raises:
        NotAllowed: the server is not for this caller.
        NotFound: there is no such server here.
        Unavailable: it is not ready.
        Malformed: it has none of that kind; `details.smcp_code` is `SMCP_RESOURCE_NOT_SUPPORTED`.
        """
        self.check_known(server)
        supervisor = self._supervisors[server]
        if not supervisor.ready:
            raise Unavailable(f"MCP server {server!r} is not running ({supervisor.state})")
        if not _has(supervisor, kind):
            raise not_supported(f"MCP server {server!r} has no {'prompts' if kind == 'prompts' else 'resources'}")

    def prompts(self, server: str) -> Prompts:
        """For its prompts. Raises as `check`."""
        self.check(server, "prompts")
        prompts = self._supervisors[server].prompts
        assert prompts is not None  # checked
        return prompts

    def check_known(self, server: str) -> None:
        if server in self.hidden:
            raise not_allowed("serverId")
        if server not in self._supervisors:
            known = sorted(self._supervisors.keys() - self.hidden)
            names = ", ".join(known[:MOST_NAMED]) or "none"
            more = ", …" if len(known) > MOST_NAMED else ""
            there = f"{did_you_mean(server, known)}; there are: {names}{more}"
            raise not_found(f"this Computer has no MCP server {server!r}{there}", field="serverId")

    def checked(self, uri: str, server: str | None) -> str:
        """The URI to ask `server` (None: any) for. What a server is known to list counts whatever its form.

        Raises:
            NotFound: there is no such server here.
            Malformed: see `checked_uri`.
        """
        if server is not None:
            self.check_known(server)
        lists = map(self._index.known, [server] if server is not None else self._servers())
        return uri if any(uri in listed for listed in lists) else checked_uri(uri)

    def listed(self, uri: str, server: str) -> str:
        """The URI by which a server knows what `uri` names, as far as its list is known; else `uri` itself."""
        return self._serve(server).listed(uri) or uri

    def subscription_uri(self, uri: str, server: str) -> str:
        """The URI for a subscription: as the server lists it, else without the query, which only chooses a format."""
        listed = self.listed(uri, server)
        return listed if listed in self._index.known(server) else without_query(listed)

    async def lists(
        self, kind: Kind, server: str | None, *, timeout: float, begin: str = ""
    ) -> tuple[dict[str, Sequence[Json]], list[str]]:
        """What servers list now, by name: one, or all that have resources. Of all, one that fails is left out.

        Returns:
            The lists; and the names of servers from `begin` on that are not running, failed or were silent.

        Raises:
            SmcpError, ServerError: that one server cannot be asked (see `check`), or does not list.
        """
        asks = {"resources": self._resources, "templates": self._index.templates, "prompts": self._prompts}
        if server is not None:
            self.check(server, kind)
            return {server: await asks[kind](server, timeout)}, []
        usable = {name: each for name, each in sorted(self._supervisors.items()) if name not in self.hidden}
        found = await self.ask_each(asks[kind], [name for name, each in usable.items() if _has(each, kind)], timeout)
        missing = [name for name, each in usable.items() if name not in found and (_has(each, kind) or not each.ready)]
        if kind != "prompts":
            self._index.count_skipped(VERB[kind])
            self._index.left_out[VERB[kind]] += len(missing)
        return found, [name for name in missing if name >= begin]

    async def documents(self, timeout: float) -> Mapping[str, Listing]:
        """The lists of the servers that take part in the finder; a failing one keeps its last list."""
        servers = self._index.servers(subscribable=True)
        self._index.count_skipped("get_finder")
        listed = await self.ask_each(self._index.list, servers, timeout)
        self._index.left_out["get_finder"] += len(servers) - len(listed)
        return {server: self._index.known(server) for server in servers}

    async def candidates(self, uri: str, server: str | None, *, timeout: float) -> list[str]:
        """The servers that may serve `uri`, the most likely one first; at least one.

        Raises:
            NotFound: none does; `details.smcp_code` is `SMCP_RESOURCE_NOT_FOUND`.
            SmcpError: `server` cannot be asked, see `check`.
        """
        if server is not None:
            self.check(server)
            return [server]
        servers = self._servers()
        known, found = [self._serve(each) for each in servers], []
        if all(map(self._index.is_listed, servers)) or listed_by(uri, known):
            found = candidates(uri, known, self._history.servers)
        if not (found := found or candidates(uri, await self._all(timeout), self._history.servers)):
            raise not_found("no MCP server of this Computer has this resource")
        return found

    async def template_candidates(self, template: str, server: str | None, *, timeout: float) -> list[str]:
        """The same for a URI template."""
        if server is not None:
            self.check(server)
            return [server]
        found = template_candidates(template, await self._all(timeout), self._history.servers)
        if not found:
            raise not_found("no MCP server of this Computer has this template")
        return found

    def _servers(self) -> list[str]:
        return [name for name in self._index.servers() if name not in self.hidden]

    async def _all(self, timeout: float) -> list[Served]:
        servers = self._servers()
        _, templates = await asyncio.gather(
            self.ask_each(self._index.list, servers, timeout), self.ask_each(self._index.templates, servers, timeout)
        )
        return [self._serve(server, templates.get(server, NO_TEMPLATES)) for server in servers]

    def _serve(self, server: str, templates: Sequence[Json] = NO_TEMPLATES) -> Served:
        index = self._index
        uris = index.known(server).keys()
        return Served(server, uris, index.names(server), tuple(item["uriTemplate"] for item in templates))

    async def ask_each(
        self, ask: Callable[[str, float], Awaitable[Found]], servers: Sequence[str], timeout: float
    ) -> dict[str, Found]:
        found: dict[str, Found] = {}

        async def one(server: str) -> None:
            try:
                found[server] = await ask(server, min(timeout, LIST_S))
            except ServerError as error:
                self._events.warn(server, f"left out of a list: {error}")

        await asyncio.gather(*map(one, servers))
        return found

    async def _resources(self, server: str, timeout: float) -> Sequence[Json]:
        return tuple((await self._index.list(server, timeout)).values())

    async def _prompts(self, server: str, timeout: float) -> Sequence[Json]:
        prompts = self._supervisors[server].prompts
        if prompts is None:
            raise ServerNotRunning(server, "went away before it was asked")
        found = await prompts.list_all(timeout=timeout)
        self._events.warn(server, *found.problems)
        return found.items


def _has(supervisor: Supervisor, kind: Kind) -> bool:
    """Whether it is ready, and has prompts, or resources and templates."""
    return (supervisor.prompts if kind == "prompts" else supervisor.resources) is not None
