"""All that serves resources and documents to Agents, put together."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from smcp_bus.bus import NoticeHandler
from smcp_bus.dispatch import Handler
from smcp_computer.context import Context
from smcp_computer.finder.metadata_cache import MetadataCache
from smcp_computer.finder.odd_answers import OddAnswers
from smcp_computer.handlers.envelope import Envelopes
from smcp_computer.handlers.get_finder import Finder
from smcp_computer.handlers.get_resources import EVENT, GetResources
from smcp_computer.handlers.left import AgentsLeaving
from smcp_computer.handlers.resources import ResourceQueries
from smcp_computer.handlers.subscribe import SubscriptionRequests
from smcp_computer.mcp.supervisor import Fleet
from smcp_computer.office_client import OfficeClient
from smcp_computer.resources.agents import AgentSubscriptions
from smcp_computer.resources.directory import Directory
from smcp_computer.resources.following import Following
from smcp_computer.resources.notices import Notices
from smcp_computer.resources.room import RoomComparison
from smcp_computer.settings import ComputerSettings
from smcp_service.lifecycle import Background


@dataclass(frozen=True, slots=True)
class ResourceServices:
    """Made by `resource_services`.

    Attributes:
        handlers: by event.
        notified: hears every notification of the office.
        agents: what Agents have subscribed to.
        cache: metadata of documents.
    """

    handlers: Mapping[str, Handler]
    notified: NoticeHandler
    agents: AgentSubscriptions
    cache: MetadataCache
    notices: Notices
    room: RoomComparison
    following: Following

    def in_office(self, entered: bool) -> None:
        """This Computer is in its office (again).

        Args:
            entered: as a new member; what was subscribed to was the one before.
        """
        if entered:
            self.agents.clear()
            self.notices.clear()
        self.following.in_office()
        self.room.begin()

    async def run(self) -> None:
        """Tell of changes, and compare the office, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.notices.run(), name="notices")
            tasks.create_task(self.room.run(), name="room")


def resource_services(
    settings: ComputerSettings,
    registry: OfficeClient,
    fleet: Fleet,
    context: Context,
    tasks: Background,
    *,
    max_body: int,
    may_tell: Callable[[], bool],
) -> ResourceServices:
    """Args:
    tasks: where documents are read.
    max_body: bytes that an answer may have on the bus.
    may_tell: whether this Computer is a member now.
    """
    index, history = context.index, context.history

    async def read(server: str, uri: str, timeout: float) -> Mapping[str, Any]:
        return await index.connection(server).read(uri, timeout=timeout)

    agents = AgentSubscriptions(context.interests)
    cache = MetadataCache(read, tasks, context.interests.subscribed, cache_bytes=settings.finder_cache_bytes)
    notices = Notices(
        registry,
        settings.office,
        settings.name,
        may_tell=lambda: may_tell() and not room.unsure,
        gather_s=settings.gather_s,
    )
    room = RoomComparison(registry, agents, notices, office=settings.office, name=settings.name)
    following = Following(fleet.events, index, agents, notices, cache)
    directory = Directory(fleet.supervisors, index, history, context.skipped, fleet.events)
    envelopes = Envelopes(settings.name, max_body=max_body)
    odd = OddAnswers()
    queries = ResourceQueries(directory, index, envelopes, odd)
    subscriptions = SubscriptionRequests(directory, index, agents, envelopes)
    finder = Finder(
        cache,
        directory.documents,
        lambda: history.servers,
        wait_s=settings.finder_wait_s,
        max_body=max_body,
    )
    for listener in (odd.on_event, finder.on_event):
        fleet.events.listen(listener)

    async def left(agent: str, epoch: int) -> None:
        await agents.left(agent, epoch)
        notices.forget(agents.wants)

    return ResourceServices(
        handlers={
            "client:resources/list": queries.list,
            "client:resources/templates/list": queries.templates,
            "client:resources/read": queries.read,
            "client:resources/subscribe": subscriptions.subscribe,
            "client:resources/unsubscribe": subscriptions.unsubscribe,
            "client:completion/complete": queries.complete,
            "client:get_finder": finder,
            EVENT: GetResources(fleet.supervisors, max_body=max_body),
        },
        notified=AgentsLeaving(left).notified,
        agents=agents,
        cache=cache,
        notices=notices,
        room=room,
        following=following,
    )
