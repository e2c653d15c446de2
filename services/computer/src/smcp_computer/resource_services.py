"""What Agents get beside tools (resources, desktop, finder), put together over the MCP servers."""

from collections.abc import Mapping
from typing import Any

from smcp_bus.dispatch import Handler
from smcp_computer.handlers.get_desktop import Desktop
from smcp_computer.handlers.get_finder import Finder
from smcp_computer.handlers.get_resources import EVENT, GetResources
from smcp_computer.handlers.resources import ResourceHandlers
from smcp_computer.mcp.supervisor import Fleet
from smcp_computer.metadata_cache import MetadataCache
from smcp_computer.outbox import Outbox
from smcp_computer.resources.changes import ResourceChanges
from smcp_computer.resources.index import History, ResourceIndex
from smcp_computer.resources.routing import Directory
from smcp_computer.resources.subscriptions import AgentSubscriptions, UpstreamSubscriptions
from smcp_computer.settings import ComputerSettings
from smcp_service.lifecycle import Background


class ResourceServices:
    """`run` must be running; `history` must hear of each call of a tool. `handlers` are by event."""

    def __init__(
        self, settings: ComputerSettings, fleet: Fleet, outbox: Outbox, tasks: Background, *, max_body: int
    ) -> None:
        events, supervisors = fleet.events, fleet.supervisors
        self.history = History()
        self.index = ResourceIndex(supervisors, events)
        self.upstream = UpstreamSubscriptions(supervisors, events, tasks)
        self.agents = AgentSubscriptions(self.upstream, outbox.missed)
        self.cache = MetadataCache(
            self._read, tasks, self.upstream.subscribed, events, cache_bytes=settings.finder_cache_bytes
        )
        self.changes = ResourceChanges(self.index, self.upstream, self.agents, events, self.cache, outbox)
        directory = Directory(supervisors, self.index, self.history, events)
        resources = ResourceHandlers(directory, self.index, self.agents, events, name=settings.name, max_body=max_body)
        self.handlers: Mapping[str, Handler] = {
            "client:get_desktop": Desktop(
                self.index, self.history, events, tasks, read_s=settings.read_s, max_body=max_body
            ),
            "client:get_finder": Finder(
                self.cache,
                directory.documents,
                self.history,
                events,
                wait_s=settings.finder_wait_s,
                max_body=max_body,
            ),
            "client:resources/list": resources.list,
            "client:resources/templates/list": resources.templates,
            "client:resources/read": resources.read,
            "client:resources/subscribe": resources.subscribe,
            "client:resources/unsubscribe": resources.unsubscribe,
            "client:completion/complete": resources.complete,
            EVENT: GetResources(supervisors, max_body=max_body),
        }

    def in_office(self, entered: bool = False) -> None:
        """This Computer is in its office (again): Agents may have left unheard, and have missed changes."""
        self.changes.in_office()
        self.agents.drop()

    async def run(self) -> None:
        await self.index.run()

    async def _read(self, server: str, uri: str, timeout: float) -> Mapping[str, Any]:
        return await self.index.connection(server).read(uri, timeout=timeout)
