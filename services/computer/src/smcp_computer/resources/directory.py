"""Which servers are to be asked, for a URI or for all that they list."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import mcp_types as types

from smcp_computer.mcp.errors import RequestRefused, ServerError
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.index import History, Listing, ResourceIndex, SkippedServers
from smcp_computer.resources.pages import Item, Kind, Position
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
LATE_S: Final = 0.5
"""How long a read waits for servers that have not listed yet, where another one lists what is wanted."""
VERB: Final[Mapping[Kind, str]] = {"resources": "resources_list", "templates": "resources_templates_list"}
NO_TEMPLATES: Final[tuple[Item, ...]] = ()


@dataclass(frozen=True, slots=True)
class Lists:
    items: Mapping[str, Sequence[Item]]
    left_out: Sequence[str] = ()
    """Servers whose items are missing, by name: they are not running, failed or were silent."""


class Directory:
    """Args:
    history: decides among several servers.
    skipped: counts the servers that lists over all servers skip.
    """

    def __init__(
        self,
        supervisors: Mapping[str, Supervisor],
        index: ResourceIndex,
        history: History,
        skipped: SkippedServers,
        events: ServerEvents,
    ) -> None:
        self._supervisors = supervisors
        self._index = index
        self._history = history
        self._skipped = skipped
        self._warnings = WarnOnce(_log, events)
        self._last: dict[tuple[Kind, str], Sequence[Item]] = {}
        """What servers listed last, in this life or the one before: for those who turn pages."""
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
            Malformed: see `checked_uri`.
        """
        lists = map(self._index.known, [server] if server is not None else self._index.servers())
        return uri if any(uri in listed for listed in lists) else checked_uri(uri)

    def listed(self, uri: str, server: str) -> str:
        """The URI by which a server knows what `uri` names, as far as its list is known; else `uri` itself."""
        return self._serve(server, self._index.known(server), NO_TEMPLATES).listed(uri) or uri

    def told_of(self, uri: str, server: str) -> str:
        """The URI by which a server tells of changes of what `uri` names: as it lists it, else without what only says
        how it is shown."""
        listed = self.listed(uri, server)
        return listed if listed in self._index.known(server) else without_query(listed)

    async def lists(self, kind: Kind, server: str | None, *, timeout: float, after: Position | None = None) -> Lists:
        """What servers list now: one, or all that have resources. Of all, one that fails is left out.

        Args:
            after: the page before this one ended here. A server that fails now, or is being started again, is listed as
                it was last: pages that go on with the next server would leave out the rest of it.

        Raises:
            SmcpError, ServerError: that one server cannot be asked (see `check`), or does not list.
        """
        ask = self._resources if kind == "resources" else self._templates
        if server is not None:
            self.check(server)
            return Lists({server: await ask(server, timeout)})
        without = self._index.without_resources()
        self._skipped.count(VERB[kind], without)
        found = await self._of_all(ask, self._index.servers(), timeout)
        self._last.update({(kind, name): items for name, items in found.items()})
        for name in self._supervisors if after is not None else ():
            if name not in found and name not in without and (kind, name) in self._last:
                found[name] = self._last[kind, name]
        left_out = [
            name
            for name in sorted(self._supervisors)
            if name not in found and name not in without and (after is None or name >= after.server)
        ]
        self._skipped.count_left_out(VERB[kind], left_out)
        return Lists(found, left_out)

    async def documents(self, timeout: float) -> Mapping[str, Listing]:
        """What the servers list that take part in the finder; one that fails is shown as it was known before."""
        servers = self._index.servers(subscribable=True)
        self._skipped.count("get_finder", self._index.without_resources())
        found = await self._of_all(self._listing, servers, timeout)
        return {server: found[server] if server in found else self._index.known(server) for server in servers}

    async def candidates(self, uri: str, server: str | None, *, timeout: float) -> list[str]:
        """The servers that may serve `uri`, the most likely one first; at least one.

        Raises:
            NotFound: none does; `details.smcp_code` is `SMCP_RESOURCE_NOT_FOUND`.
            SmcpError: `server` cannot be asked, see `check`.
        """
        if server is not None:
            self.check(server)
            return [server]
        history = self._history.servers
        found: list[str] = []
        servers, known = self._index.servers(), self._known()
        unlisted = [each for each in servers if not self._index.is_listed(each)]
        if unlisted and listed_by(uri, known):
            await self._of_all(self._listing, unlisted, min(timeout, LATE_S))
            unlisted, known = [], self._known()
        if not unlisted:
            found = candidates(uri, known, history)
        if not found:
            found = candidates(uri, await self._all(timeout), history)
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

    def _known(self) -> list[Served]:
        return [self._serve(server, self._index.known(server), NO_TEMPLATES) for server in self._index.servers()]

    async def _all(self, timeout: float) -> list[Served]:
        servers = self._index.servers()
        listings, templates = await asyncio.gather(
            self._of_all(self._listing, servers, timeout),
            self._of_all(self._templates, servers, timeout),
        )
        return [
            self._serve(server, listings.get(server) or self._index.known(server), templates.get(server, NO_TEMPLATES))
            for server in servers
        ]

    def _serve(self, server: str, listing: Listing, templates: Sequence[Item]) -> Served:
        """The same object again for the same lists: its hosts are found once."""
        key = (server, templates is NO_TEMPLATES)
        kept = self._served.get(key)
        if kept is not None and kept[0] is listing and kept[1] is templates:
            return kept[2]
        served = Served(server, listing.keys(), tuple(item["uriTemplate"] for item in templates))
        self._served[key] = (listing, templates, served)
        return served

    async def _of_all(
        self, ask: Callable[[str, float], Awaitable[Found]], servers: Sequence[str], timeout: float
    ) -> dict[str, Found]:

        async def one(server: str) -> tuple[Found] | None:
            try:
                answer = await ask(server, min(timeout, LIST_S))
            except ServerError as error:
                self._warnings.warn(server, f"left out of a list: {error}")
                return None
            return (answer,)

        answers = await asyncio.gather(*map(one, servers))
        return {server: answer[0] for server, answer in zip(servers, answers, strict=True) if answer is not None}

    async def _listing(self, server: str, timeout: float) -> Listing:
        return await self._index.list(server, timeout=timeout)

    async def _resources(self, server: str, timeout: float) -> Sequence[Item]:
        return tuple((await self._listing(server, timeout)).values())

    async def _templates(self, server: str, timeout: float) -> Sequence[Item]:
        try:
            return await self._index.templates(server, timeout=timeout)
        except RequestRefused as error:
            if error.code == types.METHOD_NOT_FOUND:
                return NO_TEMPLATES  # a server need not have any
            raise
