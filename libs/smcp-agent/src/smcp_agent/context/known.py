"""What is known of the Computers beside their tools: their desktops, documents and resources, and what makes it old."""

from collections.abc import Awaitable, Callable

from smcp_agent.context.answer_cache import AnswerCache, Partial, Spawn
from smcp_agent.context.desktop import Desktop
from smcp_agent.context.finder import Finder, FinderQuery
from smcp_agent.context.notices import Told
from smcp_agent.context.resource_lists import ListQuery, Resource
from smcp_agent.context.subscriptions import Ask, Subscriptions
from smcp_agent.events import CapabilitiesChanged, DesktopChanged, Event, FinderChanged, ResourcesChanged


class Context:
    """One cache for each kind of answer, and the subscriptions.

    Desktops and parts of the finder are asked for again by themselves when they get old, where somebody read them since
    (desktop.txt and finder.txt recommend that of Agents); lists of resources when somebody asks for them.
    """

    def __init__(
        self,
        *,
        desktop: Callable[[str], Awaitable[Desktop]],
        finder: Callable[[FinderQuery], Awaitable[Finder]],
        resources: Callable[[ListQuery], Awaitable[tuple[Resource, ...] | Partial[tuple[Resource, ...]]]],
        subscribe: Ask,
        unsubscribe: Ask,
        spawn: Spawn,
        publish: Callable[[Event], None],
    ) -> None:
        self.desktops: AnswerCache[str, Desktop] = AnswerCache(desktop, spawn, again=True)
        self.finders: AnswerCache[FinderQuery, Finder] = AnswerCache(finder, spawn, again=True)
        self.resources: AnswerCache[ListQuery, tuple[Resource, ...]] = AnswerCache(resources, spawn)
        self.subscriptions = Subscriptions(subscribe, unsubscribe, spawn, publish)

    def entered(self, computer: str) -> None:
        """A Computer is there that was not, or came back before it was told that it had left."""
        self._forget(computer)
        self.subscriptions.lost(computer)

    def left(self, computer: str) -> None:
        """A Computer left."""
        self._forget(computer)
        self.subscriptions.left(computer)

    def called(self, computer: str) -> None:
        """A tool was called: the order of the Computer's MCP servers is another (desktop.txt, finder.txt, step 2)."""
        self.desktops.outdate(lambda key, _: key == computer, again=False)
        self.finders.outdate(lambda key, _: key.computer == computer, again=False)

    def unheard(self) -> None:
        """Nothing is heard of the office any more: everything may be old."""
        self.desktops.outdate(again=False)
        self.finders.outdate(again=False)
        self.resources.outdate()

    def disowned(self, computer: str) -> None:
        """The Computer may have ended what was subscribed to: the agent, or the Computer unheard, was no member for a
        while."""
        self.subscriptions.lost(computer)

    def missed(self, computer: str) -> None:
        """The agent has been a member all the time, and heard nothing of the Computer for a while."""
        self.subscriptions.missed(computer)

    def changed(self, computer: str) -> None:
        """The Computer's tools or its configuration changed."""
        self.subscriptions.changed(computer)

    def take(self, event: Told) -> None:
        """A Computer says that something is old."""
        computer = event.computer
        match event:
            case DesktopChanged():
                self.desktops.outdate(lambda key, _: key == computer)
            case FinderChanged():
                self.finders.outdate(lambda key, _: key.computer == computer)
            case CapabilitiesChanged():
                self.subscriptions.changed(computer)
            case ResourcesChanged(server=server):
                self.resources.outdate(lambda key, _: _concerns(key, computer, server))
                self.subscriptions.changed(computer)
            case _:
                uri, server = event.uri, event.server
                self.resources.outdate(
                    lambda key, listed: (
                        _concerns(key, computer, server)
                        and (listed is None or any(each["uri"] == uri for each in listed))
                    )
                )

    def _forget(self, computer: str) -> None:
        self.desktops.forget(lambda key: key == computer)
        self.finders.forget(lambda key: key.computer == computer)
        self.resources.forget(lambda key: key.computer in (computer, None))


def _concerns(query: ListQuery, computer: str, server: str | None) -> bool:
    """Whether what was listed may hold resources of this server; None: of any."""
    return query.computer in (computer, None) and (server is None or query.server in (server, None))
