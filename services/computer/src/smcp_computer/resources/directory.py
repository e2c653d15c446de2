"""Which servers are to be asked, for a URI or for all that they list."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from smcp_computer.mcp.errors import ServerError
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.index import History, Listing, ResourceIndex
from smcp_computer.resources.pages import Item, Kind
from smcp_computer.resources.replies import not_found, not_supported
from smcp_computer.resources.routing import (
    NOTHING_CHOSEN,
    Served,
    candidates,
    checked_uri,
    listed_by,
    template_candidates,
)
from smcp_computer.resources.warn_once import WarnOnce
from smcp_proto.errors import Unavailable
from smcp_proto.uris import without_query

_log = logging.getLogger("smcp_computer.resources")

Found = TypeVar("Found")

LIST_S: Final = 5.0
"""How long a server may take to list where several are asked: a silent one must not use up the time of the others."""
VERB: Final[Mapping[Kind, str]] = {"resources": "resources_list", "templates": "resources_templates_list"}
NO_TEMPLATES: Final[tuple[Item, ...]] = ()


class Directory:
    """Args:
    history: decides among several servers.
    """

    def __init__(
        self, supervisors: Mapping[str, Supervisor], index: ResourceIndex, history: History, events: ServerEvents
    ) -> None:
        self._supervisors = supervisors
        self._index = index
        self._history = history
        self._warnings = WarnOnce(_log, events)
        self._served: dict[tuple[str, bool], tuple[Listing, Sequence[Item], Served]] = {}

    def check(self, server: str) -> None:
        """Let a server through that can be asked for resources.

        Raises:
            NotFound: there is no such server here.
            Unavailable: it is not ready.
            Malformed: it has no resources; `details.smcp_code` is `SMCP_RESOURCE_NOT_SUPPORTED`.
        """
        self.check_known(server)
        supervisor = self._supervisors[server]
        if not supervisor.ready:
            raise Unavailable(f"MCP server {server!r} is not running ({supervisor.state})")
        if supervisor.resources is None:
            raise not_supported(f"MCP server {server!r} has no resources")

    def check_known(self, server: str) -> None:
        if server not in self._supervisors:
            raise not_found("this Computer has no such MCP server", field="serverId")

    def checked(self, uri: str, server: str | None) -> str:
        """The URI to ask for. What a server lists, as far as it is known, counts whatever its form.

        Args:
            server: only this one is asked; None: any.

        Raises:
            NotFound: there is no such server here.
            Malformed: see `checked_uri`.
        """
        if server is not None:
            self.check_known(server)
        lists = map(self._index.known, [server] if server is not None else self._index.servers())
        return uri if any(uri in listed for listed in lists) else checked_uri(uri)

    def listed(self, uri: str, server: str) -> str:
        """The URI by which a server knows what `uri` names, as far as its list is known; else `uri` itself."""
        return self._serve(server).listed(uri) or uri

    def told_of(self, uri: str, server: str) -> str:
        """The URI by which a server tells of changes of what `uri` names: as it lists it, else without what only says
        how it is shown."""
        listed = self.listed(uri, server)
        return listed if listed in self._index.known(server) else without_query(listed)

    async def lists(
        self, kind: Kind, server: str | None, *, timeout: float, begin: str = ""
    ) -> tuple[dict[str, Sequence[Item]], list[str]]:
        """What servers list now, by name: one, or all that have resources. Of all, one that fails is left out.

        Args:
            begin: the name of the server at which a page begins.

        Returns:
            The lists; and the names of servers from `begin` on that are not running, failed or were silent.

        Raises:
            SmcpError, ServerError: that one server cannot be asked (see `check`), or does not list.
        """
        ask = self._resources if kind == "resources" else self._index.templates
        if server is not None:
            self.check(server)
            return {server: await ask(server, timeout)}, []
        without = self._index.count_skipped(VERB[kind])
        found = await self._of_all(ask, self._index.servers(), timeout)
        there = {*found, *without}
        return found, [name for name in sorted(self._supervisors) if name not in there and name >= begin]

    async def documents(self, timeout: float) -> Mapping[str, Listing]:
        """What the servers list that take part in the finder; one that fails is shown as it was known before."""
        servers = self._index.servers(subscribable=True)
        self._index.count_skipped("get_finder")
        await self._of_all(self._index.list, servers, timeout)
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
        found: list[str] = []
        servers = self._index.servers()
        known = [self._serve(each) for each in servers]
        if all(map(self._index.is_listed, servers)) or listed_by(uri, known):
            found = candidates(uri, known, self._history.servers)
        if not found:
            found = candidates(uri, await self._all(timeout), self._history.servers)
        if not found:
            raise not_found("no MCP server of this Computer has this resource")
        return found

    async def template_candidates(
        self, template: str, server: str | None, *, timeout: float, chosen: Mapping[str, str] = NOTHING_CHOSEN
    ) -> list[str]:
        """The same for a URI template.

        Args:
            chosen: arguments that are chosen already: among several servers they may say which one is meant.
        """
        if server is not None:
            self.check(server)
            return [server]
        found = template_candidates(template, await self._all(timeout), self._history.servers, chosen)
        if not found:
            raise not_found("no MCP server of this Computer has this template")
        return found

    async def _all(self, timeout: float) -> list[Served]:
        servers = self._index.servers()
        _, templates = await asyncio.gather(
            self._of_all(self._index.list, servers, timeout), self._of_all(self._index.templates, servers, timeout)
        )
        return [self._serve(server, templates.get(server, NO_TEMPLATES)) for server in servers]

    def _serve(self, server: str, templates: Sequence[Item] = NO_TEMPLATES) -> Served:
        """The same object again for the same lists: its hosts are found once."""
        key, listing = (server, templates is NO_TEMPLATES), self._index.known(server)
        kept = self._served.get(key)
        if kept is not None and kept[0] is listing and kept[1] is templates:
            return kept[2]
        served = Served(server, listing.keys(), tuple(item["uriTemplate"] for item in templates))
        self._served[key] = (listing, templates, served)
        return served

    async def _of_all(
        self, ask: Callable[[str, float], Awaitable[Found]], servers: Sequence[str], timeout: float
    ) -> dict[str, Found]:
        found: dict[str, Found] = {}

        async def one(server: str) -> None:
            try:
                found[server] = await ask(server, min(timeout, LIST_S))
            except ServerError as error:
                self._warnings.warn(server, f"left out of a list: {error}")

        await asyncio.gather(*map(one, servers))
        return found

    async def _resources(self, server: str, timeout: float) -> Sequence[Item]:
        return tuple((await self._index.list(server, timeout)).values())
