"""What Agents have subscribed to (computer.txt, resources chapter, 4.3).

A subscription belongs to an Agent's membership, and ends with it. It is kept here, with the servers: so an Agent that
moves to another gateway keeps it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from smcp_computer.resources.interests import Interests
from smcp_computer.resources.routing import is_same
from smcp_proto.errors import NotInOffice, RateLimited
from smcp_proto.schemas.resources import SmcpCode
from smcp_proto.uris.above import resources_above

MOST: Final = 1000
"""Resources that one Agent may subscribe to."""

REMEMBERED: Final = 100
"""Agents whose last leave is known."""

Agent = str | None
"""Its name; None: an Agent that did not say it. An office has one Agent at a time, so it is known all the same."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Holds an Agent's interests."""

    agent: Agent


@dataclass(slots=True)
class _Subscribed:
    resources: dict[tuple[str, str], int] = field(default_factory=dict)
    """By server and URI: the epoch of the membership in which that was subscribed to; 0 where it is not known."""
    since: int = 0
    """The count of subscriptions at its last one."""


class AgentSubscriptions:
    """Args:
    interests: counts the subscriptions at the servers.
    """

    def __init__(self, interests: Interests) -> None:
        self._interests = interests
        self._agents: dict[Agent, _Subscribed] = {}
        self._left: dict[str, int] = {}
        """By Agents that left last, how the office was told of it: the epoch."""
        self._count = 0

    @property
    def count(self) -> int:
        """Grows with each subscription: see `retain`."""
        return self._count

    @property
    def agents(self) -> frozenset[Agent]:
        """Those that have subscribed to something."""
        return frozenset(self._agents)

    async def subscribe(self, agent: Agent, server: str, uri: str, *, epoch: int = 0) -> None:
        """Subscribe an Agent; once more says the same.

        Args:
            epoch: of the enter of the Agent's membership (`smcp_bus.headers.AGENT_EPOCH`); 0: not known.

        Raises:
            NotInOffice: that membership has ended.
            ServerError: the server does not tell of it. One that is being started again is told of what it had agreed
                to before.
            RateLimited: the Agent has subscribed to `MOST` others.
        """
        if agent is not None and 0 < epoch < self._left.get(agent, 0):
            raise NotInOffice("the Agent has left the office")
        mine = self._agents.setdefault(agent, _Subscribed())
        self._count += 1
        mine.since = self._count
        if (server, uri) not in mine.resources and len(mine.resources) >= MOST:
            details = {"smcp_code": str(SmcpCode.RATE_LIMITED), "limit": MOST}
            raise RateLimited(f"an Agent subscribes to at most {MOST} resources of a Computer", details=details)
        mine.resources[server, uri] = max(
            epoch, mine.resources.get((server, uri), 0)
        )  # before the server is asked: what it tells at once is not lost
        try:
            await self._interests.hold(Holder(agent), server, uri)
        except BaseException:
            if Holder(agent) not in self._interests.holders(server, uri):
                self._forget(agent, server, uri)
            raise
        if (server, uri) not in self._of(agent):
            await self._interests.release(Holder(agent), server, uri)  # the Agent has left meanwhile

    def has(self, agent: Agent, uri: str) -> bool:
        """Whether it has subscribed to this very URI, at any server."""
        return any(uri == subscribed for _, subscribed in self._of(agent))

    def wants(self, agent: Agent, server: str, uri: str) -> bool:
        """Whether it has subscribed to this resource of that server, or to one above it."""
        resources = self._resources(agent)
        return any((server, each) in resources for each in (uri, *resources_above(uri)))

    async def unsubscribe(self, agent: Agent, server: str | None, uri: str) -> None:
        """End it, by any URI of the same window; None: at every server. Does nothing where there is none."""
        for at, subscribed in list(self._of(agent)):
            if server in (None, at) and is_same(subscribed, uri):
                self._forget(agent, at, subscribed)
                await self._interests.release(Holder(agent), at, subscribed)

    async def left(self, agent: str, epoch: int) -> None:
        """An Agent has left the office: what it subscribed to in that membership ends.

        Args:
            epoch: of the leave. What has a greater one is of a later membership of the Agent, and stays.
        """
        is_newest = epoch > max(self._left.values(), default=0)
        self._left.pop(agent, None)
        self._left[agent] = epoch
        if len(self._left) > REMEMBERED:
            del self._left[next(iter(self._left))]
        # a leave that is heard after a newer one is of no Agent that may have subscribed without a name since
        for gone in (agent, None) if is_newest else (agent,):
            await self._end(gone, lambda since: since < epoch)

    async def began(self, epoch: int) -> int:
        """The membership of the office's Agent began after this epoch: what was subscribed to before it ends, whichever
        Agent it was. What is not known to be so old stays.

        Returns:
            How many subscriptions have ended.
        """
        return sum([await self._end(agent, lambda since: 0 < since < epoch) for agent in self.agents])

    def clear(self) -> None:
        """End all subscriptions, in the background."""
        for agent in self._agents:
            self._interests.drop(Holder(agent))
        self._agents.clear()

    def retain(self, agents: Collection[str], *, before: int) -> None:
        """Only these Agents are in the office. What was subscribed after `count` was `before` is not touched."""
        for agent, subscribed in list(self._agents.items()):
            there = agent in agents if agent is not None else bool(agents)
            if not there and subscribed.since <= before:
                del self._agents[agent]
                self._interests.drop(Holder(agent))

    def concerned(self, server: str, uri: str) -> Iterator[tuple[Agent, str]]:
        """The Agents that have subscribed to a resource, or to one above it, each once; and to which: the nearest."""
        if not self._agents:
            return
        asked = [(server, each) for each in (uri, *resources_above(uri))]
        for agent, subscribed in self._agents.items():
            for key in asked:
                if key in subscribed.resources:
                    yield agent, key[1]
                    break

    def of(self, server: str) -> list[tuple[Agent, str]]:
        """All that is subscribed to at a server: Agents and URIs."""
        return [
            (agent, uri)
            for agent, subscribed in self._agents.items()
            for at, uri in sorted(subscribed.resources)
            if at == server
        ]

    async def _end(self, agent: Agent, is_over: Callable[[int], bool]) -> int:
        """End the subscriptions of an Agent of whose epochs that is true; returns how many."""
        over = [key for key, since in self._resources(agent).items() if is_over(since)]
        for server, uri in over:
            self._forget(agent, server, uri)
            await self._interests.release(Holder(agent), server, uri)
        return len(over)

    def _of(self, agent: Agent) -> Collection[tuple[str, str]]:
        return self._resources(agent).keys()

    def _resources(self, agent: Agent) -> Mapping[tuple[str, str], int]:
        subscribed = self._agents.get(agent)
        return {} if subscribed is None else subscribed.resources

    def _forget(self, agent: Agent, server: str, uri: str) -> None:
        subscribed = self._agents.get(agent)
        if subscribed is not None:
            subscribed.resources.pop((server, uri), None)
            if not subscribed.resources:
                del self._agents[agent]
