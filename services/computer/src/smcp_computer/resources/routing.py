"""Chooses the MCP servers to ask for a URI, for a template or prompt, or for all that they list; and tells how long the
request lets them take."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from smcp_bus.dispatch import Call
from smcp_computer.access import not_allowed
from smcp_computer.mcp.errors import not_found, not_supported
from smcp_computer.mcp.resources import LISTS, Json, Kind
from smcp_computer.resources.index import ResourceIndex
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


class Routes:
    """The MCP servers of one request: all but `hidden`, which its caller may not use."""

    def __init__(self, index: ResourceIndex, history: History, hidden: frozenset[str], call: Call) -> None:
        self._index, self._history, self._hidden = index, history, hidden
        self.budget = Budget(call)

    @property
    def _servers(self) -> list[str]:
        return [name for name in sorted(self._index.supervisors) if name not in self._hidden]

    def check(self, server: str, kind: Kind = "resources") -> None:
        """Raises NotAllowed: the server is not for this caller; NotFound: there is none; Unavailable: it is not ready;
        Malformed: it has none of that kind (`details.smcp_code` is `SMCP_RESOURCE_NOT_SUPPORTED`)."""
        self._check_known(server)
        supervisor = self._index.supervisors[server]
        if not supervisor.ready:
            raise Unavailable(f"MCP server {server!r} is not running ({supervisor.state})")
        if not self._having(kind, [server]):
            raise not_supported(f"MCP server {server!r} has no {'prompts' if kind == 'prompts' else 'resources'}")

    def _check_known(self, server: str) -> None:
        if server in self._hidden:
            raise not_allowed("serverId")
        if server not in self._servers:
            hint = did_you_mean(server, self._servers)
            raise not_found(f"this Computer has no MCP server {server!r}{hint}", field="serverId")

    def checked(self, uri: str, server: str | None) -> str:
        """The URI to ask `server` (None: any) for; a listed one passes whatever its form. Raises as `check` for a
        server that does not exist, and Malformed (`checked_uri`)."""
        if server is not None:
            self._check_known(server)
        lists = map(self._index.known, self._having("resources") if server is None else [server])
        return uri if any(uri in listed for listed in lists) else checked_uri(uri)

    def listed(self, uri: str, server: str) -> str:
        """The URI by which a server knows what `uri` names, as far as its list is known; else `uri` itself."""
        return self._index.known(server).find(uri) or uri

    def subscription_uri(self, uri: str, server: str) -> str:
        """The URI for a subscription: as the server lists it, else without the query, which only chooses a format."""
        listed = self.listed(uri, server)
        return listed if listed in self._index.known(server) else without_query(listed)

    async def lists(
        self, kind: Kind, server: str | None, *, begin: str = ""
    ) -> tuple[dict[str, Sequence[Json]], list[str]]:
        """What servers list now, by name: one, or all that have resources. Of all, one that fails is left out.
        Beside them: the names of servers from `begin` on that are not running, failed or were silent. Raises as `check`
        of that one server, and ServerError: it does not list."""
        if server is not None:
            self.check(server, kind)
            return {server: await self._index.items(kind, server, self.budget.left)}, []
        having = self._having(kind)
        wanted = {name for name in self._servers if name in having or not self._index.supervisors[name].ready}
        found = await self._index.items_of_each(kind, having, self.budget.left)
        missing = wanted - found.keys()
        if kind != "prompts":
            self._index.count(f"resources_{'' if kind == 'resources' else 'templates_'}list", len(missing))
        return found, sorted(name for name in missing if name >= begin)

    async def candidates(self, uri: str, server: str | None) -> list[str]:
        """The servers that may serve `uri`, at least one: those that list it, or its document; where none does, those
        that list something of its host; else those with a template that begins like it. The one used last comes first,
        then by name. Raises NotFound: none does (`details.smcp_code` is `SMCP_RESOURCE_NOT_FOUND`); and as `check`.
        """
        if server is not None:
            self.check(server)
            return [server]
        servers, known, host = self._having("resources"), self._index.known, host_of(uri)
        found = [each for each in servers if known(each).find(uri)]
        if not found:
            await self._index.items_of_each("resources", servers, self.budget.left)
            found = [each for each in servers if known(each).find(uri)]
        found = found or [each for each in servers if host in known(each).hosts]
        if not found:
            for each, templates in (await self._index.items_of_each("templates", servers, self.budget.left)).items():
                if any(uri.startswith(template["uriTemplate"].partition("{")[0]) for template in templates):
                    found.append(each)
        if not found:
            raise not_found("no MCP server of this Computer has this resource")
        return server_order(found, self._history.servers)

    async def listing(self, kind: Kind, name: str, server: str | None) -> list[str]:
        """The servers that list this template or prompt, at least one, in the same order. Raises as `candidates`."""
        if server is not None:
            self.check(server, kind)
            return [server]
        lists = await self._index.items_of_each(kind, self._having(kind), self.budget.left)
        found = [each for each, items in lists.items() if any(item[LISTS[kind][2]] == name for item in items)]
        if not found:
            raise not_found(f"no MCP server of this Computer has the {kind.removesuffix('s')} {name!r:.200}")
        return server_order(found, self._history.servers)

    def _having(self, kind: Kind, servers: Sequence[str] | None = None) -> list[str]:
        """Servers that are ready and offer that kind."""
        by_name = self._index.supervisors
        each = ((name, by_name[name]) for name in (self._servers if servers is None else servers))
        return [name for name, it in each if (it.prompts if kind == "prompts" else it.resources) is not None]
