"""Chooses the MCP servers to ask for a URI, for a template or prompt, or for all that they list; and tells how long the
request lets them take."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from smcp_bus.dispatch import Call
from smcp_computer.access import not_allowed
from smcp_computer.mcp.errors import ServerError, ServerNotRunning, not_found, not_supported
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.resources import Json, Prompts
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.index import ID_KEY, Kind, Listing, ResourceIndex
from smcp_computer.tools import History
from smcp_proto.errors import Unavailable
from smcp_proto.printable import did_you_mean
from smcp_proto.sorting import server_order
from smcp_proto.tool_results import time_limit
from smcp_proto.uris import DPE, WINDOW, host_of, parse_dpe_uri, parse_window_uri, scheme_of, without_query
from smcp_proto.validation import refused


def checked_uri(uri: str) -> str:
    """The URI to ask a server for, where none lists it just so. A `dpe://` URI has to be one (finder.txt, 校验规则).
    It keeps its query; of a `window://` URI the query is dropped. Raises Malformed: it is not valid; `details.reason`
    begins with the part or the parameter that is wrong.
    """
    parsers: dict[str, Callable[[str], object]] = {DPE: parse_dpe_uri, WINDOW: parse_window_uri}
    scheme = scheme_of(uri)
    try:
        parsers.get(scheme, str)(uri)
    except ValueError as error:
        raise refused("payload.params.uri", str(error)) from None
    return without_query(uri) if scheme == WINDOW else uri


Found = TypeVar("Found")

LIST_S: Final = 5.0
"""How long a server may take to list where several are asked: a silent one must not use up the time of the others."""
VERB: Final[Mapping[Kind, str]] = {"resources": "resources_list", "templates": "resources_templates_list"}


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


@dataclass(eq=False)
class Directory:
    _supervisors: Mapping[str, Supervisor]
    _index: ResourceIndex
    _history: History
    _events: ServerEvents
    hidden: frozenset[str] = frozenset()
    """Servers that are not for this caller."""

    def without(self, hidden: frozenset[str]) -> "Directory":
        """The same for a caller who may not use these servers."""
        return replace(self, hidden=hidden) if hidden else self

    def check(self, server: str, kind: Kind = "resources") -> None:
        """Raises NotAllowed: the server is not for this caller; NotFound: there is none; Unavailable: it is not ready;
        Malformed: it has none of that kind (`details.smcp_code` is `SMCP_RESOURCE_NOT_SUPPORTED`)."""
        self.check_known(server)
        supervisor = self._supervisors[server]
        if not supervisor.ready:
            raise Unavailable(f"MCP server {server!r} is not running ({supervisor.state})")
        if not _has(supervisor, kind):
            raise not_supported(f"MCP server {server!r} has no {'prompts' if kind == 'prompts' else 'resources'}")

    def prompts(self, server: str) -> Prompts:
        if server not in self._supervisors or (prompts := self._supervisors[server].prompts) is None:
            raise ServerNotRunning(server, "went away before it was asked")
        return prompts

    def check_known(self, server: str) -> None:
        if server in self.hidden:
            raise not_allowed("serverId")
        if server not in self._supervisors:
            hint = did_you_mean(server, self._supervisors.keys() - self.hidden)
            raise not_found(f"this Computer has no MCP server {server!r}{hint}", field="serverId")

    def checked(self, uri: str, server: str | None) -> str:
        """The URI to ask `server` (None: any) for. What a server is known to list counts whatever its form. Raises as
        `check_known`, and Malformed (`checked_uri`)."""
        if server is not None:
            self.check_known(server)
        lists = map(self._index.known, [server] if server is not None else self._servers())
        return uri if any(uri in listed for listed in lists) else checked_uri(uri)

    def listed(self, uri: str, server: str) -> str:
        """The URI by which a server knows what `uri` names, as far as its list is known; else `uri` itself."""
        return self._index.known(server).find(uri) or uri

    def subscription_uri(self, uri: str, server: str) -> str:
        """The URI for a subscription: as the server lists it, else without the query, which only chooses a format."""
        listed = self.listed(uri, server)
        return listed if listed in self._index.known(server) else without_query(listed)

    async def lists(
        self, kind: Kind, server: str | None, *, timeout: float, begin: str = ""
    ) -> tuple[dict[str, Sequence[Json]], list[str]]:
        """What servers list now, by name: one, or all that have resources. Of all, one that fails is left out.
        Beside them: the names of servers from `begin` on that are not running, failed or were silent. Raises as `check`
        of that one server, and ServerError: it does not list."""
        if server is not None:
            self.check(server, kind)
            return {server: await self._ask(kind)(server, timeout)}, []
        usable = {name: each for name, each in sorted(self._supervisors.items()) if name not in self.hidden}
        having = [name for name, each in usable.items() if _has(each, kind)]
        found = await self.ask_each(self._ask(kind), having, timeout)
        missing = {*having, *(name for name, each in usable.items() if not each.ready)} - found.keys()
        if kind != "prompts":
            self._index.count_skipped(VERB[kind])
            self._index.left_out[VERB[kind]] += len(missing)
        return found, sorted(name for name in missing if name >= begin)

    async def documents(self, timeout: float) -> Mapping[str, Listing]:
        """The lists of the servers that take part in the finder; a failing one keeps its last list."""
        servers = self._index.servers(subscribable=True)
        self._index.count_skipped("get_finder")
        listed = await self.ask_each(self._index.list, servers, timeout)
        self._index.left_out["get_finder"] += len(servers) - len(listed)
        return {server: self._index.known(server) for server in servers}

    async def candidates(self, uri: str, server: str | None, *, timeout: float) -> list[str]:
        """The servers that may serve `uri`, at least one: those that list it, or its document; where none does, those
        that list something of its host; else those with a template that begins like it. The one used last comes first,
        then by name. Raises NotFound: none does (`details.smcp_code` is `SMCP_RESOURCE_NOT_FOUND`); and as `check`.
        """
        if server is not None:
            self.check(server)
            return [server]
        servers, known, host = self._servers(), self._index.known, host_of(uri)
        found = [each for each in servers if known(each).find(uri)]
        if not found:
            await self.ask_each(self._index.list, servers, timeout)
            found = [each for each in servers if known(each).find(uri)]
        found = found or [each for each in servers if host in known(each).hosts]
        if not found:
            for each, templates in (await self.ask_each(self._index.templates, servers, timeout)).items():
                if any(uri.startswith(template["uriTemplate"].partition("{")[0]) for template in templates):
                    found.append(each)
        if not found:
            raise not_found("no MCP server of this Computer has this resource")
        return server_order(found, self._history.servers)

    async def listing(self, kind: Kind, name: str, server: str | None, *, timeout: float) -> list[str]:
        """The servers that list this template or prompt, at least one, in the same order. Raises as `candidates`."""
        if server is not None:
            self.check(server, kind)
            return [server]
        having = [each for each, supervisor in self._supervisors.items() if _has(supervisor, kind)]
        lists = await self.ask_each(self._ask(kind), [each for each in having if each not in self.hidden], timeout)
        found = [each for each, items in lists.items() if any(item[ID_KEY[kind]] == name for item in items)]
        if not found:
            raise not_found(f"no MCP server of this Computer has the {kind.removesuffix('s')} {name!r:.200}")
        return server_order(found, self._history.servers)

    def _servers(self) -> list[str]:
        return [name for name in self._index.servers() if name not in self.hidden]

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

    def _ask(self, kind: Kind) -> Callable[[str, float], Awaitable[Sequence[Json]]]:
        asks = {"resources": self._resources, "templates": self._index.templates, "prompts": self._prompts}
        return asks[kind]

    async def _resources(self, server: str, timeout: float) -> Sequence[Json]:
        return tuple((await self._index.list(server, timeout)).values())

    async def _prompts(self, server: str, timeout: float) -> Sequence[Json]:
        found = await self.prompts(server).list_all(timeout=timeout)
        self._events.warn(server, *found.problems)
        return found.items


def _has(supervisor: Supervisor, kind: Kind) -> bool:
    return (supervisor.prompts if kind == "prompts" else supervisor.resources) is not None
