"""From what MCP servers tell to what becomes of it: Agents are told, and what is kept of documents is read anew."""

from smcp_computer.finder.metadata_cache import MetadataCache
from smcp_computer.mcp.events import (
    ResourcesSubscribed,
    ResourceUpdated,
    ServerEvent,
    ServerEvents,
    ServerGone,
    ServerReady,
)
from smcp_computer.resources.agents import AgentSubscriptions, Holder
from smcp_computer.resources.index import NOTHING, Listing, ResourceIndex
from smcp_computer.resources.notices import Notices


class Following:
    """Begins with its making, and lasts as long as the events do."""

    def __init__(
        self,
        events: ServerEvents,
        index: ResourceIndex,
        agents: AgentSubscriptions,
        notices: Notices,
        cache: MetadataCache,
    ) -> None:
        self._index = index
        self._agents = agents
        self._notices = notices
        self._cache = cache
        self._entered = False
        self._told: dict[str, tuple[Listing, int]] = {}
        """The lists of the servers as the office was told of them last, and how often their templates were outdated."""
        self._lives: set[str] = set()
        """Servers that were ready before."""
        events.listen(self._on_event)
        index.listen(self._on_list)

    def in_office(self) -> None:
        """This Computer is in its office. Who hears of it asks for all lists: changes are told from here on."""
        self._entered = True

    def _on_event(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri):
                self._cache.changed(server, uri)
                for agent, whole in tuple(self._agents.concerned(server, uri)):
                    self._notices.updated(agent, server, uri, self._title(server, uri), whole=whole)
            case ResourcesSubscribed(server, before):
                self._cache.subscribed(server, before.keys())
                for agent, uri in self._agents.of(server):
                    if Holder(agent) in before.get(uri, ()):
                        self._notices.updated(agent, server, uri, self._title(server, uri), whole=uri)
            case ServerReady(server):
                self._cache.started(server)
                # what changed between two lives of a server was told by nobody
                if server in self._lives:
                    for agent, uri in self._agents.of(server):
                        self._notices.updated(agent, server, uri, None, whole=uri)
                self._lives.add(server)
            case ServerGone(server):
                self._cache.changed(server)
            case _:
                pass

    def _on_list(self, server: str) -> None:
        listing, outdated = self._index.known(server), self._index.templates_outdated(server)
        told, before = self._told.get(server, (NOTHING, 0))
        # whether the templates are others nobody knows before they are asked for; who has them is told that they may be
        if outdated != before or dict(listing) != dict(told):
            self._told[server] = (listing, outdated)
            if self._entered:
                self._notices.list_changed(server)

    def _title(self, server: str, uri: str) -> str | None:
        title = self._index.known(server).get(uri, {}).get("title")
        return title if isinstance(title, str) else None
