"""Subscriptions to resources: those of Agents at this Computer, and those of this Computer at its MCP servers.

A server is asked once for a resource, however many hold it: the desktop, the finder and Agents. What the desktop and
the finder want is asked for again after failures and restarts. An Agent's subscription is not restored: after any
interruption it is dropped, and the Agent is told to subscribe again (ADR 0019).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from smcp_bus.backoff import Backoff
from smcp_computer.mcp.errors import NotTold, ServerError, ServerNotRunning
from smcp_computer.mcp.events import (
    ResourcesSubscribed,
    ResourcesUnsubscribed,
    ServerEvent,
    ServerEvents,
    ServerGone,
    ServerReady,
)
from smcp_computer.mcp.resources import Resources
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.routing import is_same
from smcp_computer.resources.warn_once import WarnOnce
from smcp_proto.errors import RateLimited
from smcp_proto.schemas.resources import SmcpCode
from smcp_proto.uris import resources_above

_log = logging.getLogger("smcp_computer.resources")

RETRY_S: Final = 1.0
"""The first pause before a server is asked again for subscriptions that failed; it doubles up to `RETRY_LONGEST_S`."""
RETRY_LONGEST_S: Final = 60.0
GATHER_S: Final = 0.1
"""Subscriptions that are made within it are one event."""
MOST: Final = 1000
"""Resources that one Agent may subscribe to."""

Agent = str | None
"""Its name; None: an Agent that did not say it. An office has one Agent at a time, so that is enough."""


@dataclass
class _Upstream:
    """One MCP server. A URI is in one of `subscribed`, `failed` and `asking` at most."""

    supervisor: Supervisor
    holders: dict[str, set[Hashable]] = field(default_factory=dict)
    """By URI."""
    connection: Resources | None = None
    """For which the following holds."""
    subscribed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    """Asked for again after a pause."""
    asking: "dict[str, asyncio.Future[ServerError | None]]" = field(default_factory=dict)
    """The server is being asked to tell of these, or to tell no more: the answers."""
    news: set[str] = field(default_factory=set)
    """Subscribed, and no event yet."""
    dirty: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: asyncio.TaskGroup | None = None
    """Where the server is asked: no caller's time-out breaks that off."""

    def current(self) -> Resources | None:
        """The present connection. What was true of an earlier one is forgotten."""
        if self.supervisor.resources is not self.connection:
            self.connection = self.supervisor.resources
            for uris in (self.subscribed, self.failed, self.news):
                uris.clear()
            for uri in tuple(self.asking):
                self.answer(uri, ServerNotRunning(self.supervisor.name, "went away before it answered"))
        return self.connection

    def answer(self, uri: str, error: ServerError | None = None) -> None:
        if (answer := self.asking.pop(uri, None)) is not None:
            answer.set_result(error)

    def release(self, holder: Hashable, uri: str) -> None:
        holders = self.holders.get(uri, set())
        holders.discard(holder)
        if not holders:
            self.holders.pop(uri, None)
            self.failed.discard(uri)
            self.dirty.set()


class UpstreamSubscriptions:
    """The subscriptions at the MCP servers. `run` must be running."""

    def __init__(self, supervisors: Mapping[str, Supervisor], events: ServerEvents) -> None:
        self._servers = {name: _Upstream(supervisor) for name, supervisor in supervisors.items()}
        self._warnings = WarnOnce(_log, events)
        self._events = events
        events.listen(self._on_event)

    def holders(self, server: str, uri: str) -> frozenset[Hashable]:
        upstream = self._servers.get(server)
        return frozenset(upstream.holders.get(uri, ())) if upstream is not None else frozenset()

    def subscribed(self, server: str) -> frozenset[str]:
        upstream = self._servers[server]
        upstream.current()
        return frozenset(upstream.subscribed)

    async def hold(self, holder: Hashable, server: str, uri: str) -> None:
        """Have the server send updates of a resource until `release`, or until the server goes.

        Raises:
            ServerError: it does not; nothing is held then.
        """
        upstream = self._servers.get(server)
        connection = upstream.current() if upstream is not None else None
        if upstream is None or connection is None:
            raise ServerNotRunning(server, "is not ready, or has no resources")
        try:
            await self._granted(upstream, connection, holder, uri)
        except BaseException:
            upstream.release(holder, uri)
            raise

    def release(self, holder: Hashable, server: str, uri: str) -> None:
        self._servers[server].release(holder, uri)

    def want(self, holder: Hashable, server: str, uris: Collection[str]) -> None:
        """Hold exactly these of the server, in the background; what the server refuses is a warning."""
        upstream, wanted = self._servers[server], set(uris)
        held = {uri for uri, holders in upstream.holders.items() if holder in holders}
        for uri in held - wanted:
            upstream.release(holder, uri)
        for uri in wanted:
            upstream.holders.setdefault(uri, set()).add(holder)
        upstream.dirty.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, upstream in self._servers.items():
                tasks.create_task(self._keep(upstream), name=f"subscriptions:{name}")

    async def _granted(self, upstream: _Upstream, connection: Resources, holder: Hashable, uri: str) -> None:
        while True:
            upstream.holders.setdefault(uri, set()).add(holder)  # once more: another request may have given up
            if uri in upstream.subscribed:
                return
            if uri not in upstream.asking:
                upstream.failed.discard(uri)
                self._ask(upstream, connection, [uri])
            error = await asyncio.shield(upstream.asking[uri])
            if error is None and upstream.current() is not connection:
                error = ServerNotRunning(upstream.supervisor.name, "went away before it answered")
            if error is not None:
                raise error

    async def _keep(self, upstream: _Upstream) -> None:
        backoff = Backoff(first_s=RETRY_S, longest_s=RETRY_LONGEST_S)
        loop = asyncio.get_running_loop()
        due: float | None = None
        async with asyncio.TaskGroup() as tasks:
            upstream.tasks = tasks
            try:
                while True:
                    self._begin(upstream)
                    if upstream.failed:
                        due = loop.time() + backoff.next() if due is None else due
                    elif not upstream.asking:
                        backoff.reset()
                        due = None
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(due):
                            await upstream.dirty.wait()
                    upstream.dirty.clear()
                    if due is not None and due <= loop.time():
                        due = None
                        upstream.failed.clear()
            finally:
                upstream.tasks = None
                for uri in tuple(upstream.asking):
                    upstream.answer(uri, ServerNotRunning(upstream.supervisor.name, "is being stopped"))

    def _begin(self, upstream: _Upstream) -> None:
        connection = upstream.current()
        if connection is None:
            return
        if idle := upstream.subscribed - upstream.holders.keys():
            upstream.subscribed -= idle
            upstream.news -= idle
            self._start(upstream, idle, self._end(upstream, connection, idle))
        busy = upstream.subscribed | upstream.failed | upstream.asking.keys()
        if missing := [uri for uri in upstream.holders if uri not in busy]:
            self._ask(upstream, connection, missing)

    def _ask(self, upstream: _Upstream, connection: Resources, uris: Collection[str]) -> None:
        def answered(uri: str, error: ServerError | None) -> None:
            if upstream.current() is connection:
                self._answered(upstream, uri, error)

        async def ask() -> None:
            await connection.subscribe_all(uris, answered)
            self._tell(upstream)

        self._start(upstream, uris, ask())

    def _start(self, upstream: _Upstream, uris: Collection[str], asking: Coroutine[Any, Any, None]) -> None:
        if upstream.tasks is None:
            asking.close()
            raise ServerNotRunning(upstream.supervisor.name, "is being stopped")
        loop = asyncio.get_running_loop()
        upstream.asking.update({uri: loop.create_future() for uri in uris})
        upstream.tasks.create_task(asking)

    async def _end(self, upstream: _Upstream, connection: Resources, uris: Collection[str]) -> None:
        await connection.unsubscribe(*sorted(uris))
        if upstream.current() is connection:
            for uri in uris:
                upstream.answer(uri)
            upstream.dirty.set()  # somebody may hold one of them by now

    def _answered(self, upstream: _Upstream, uri: str, error: ServerError | None) -> None:
        if error is None:
            upstream.subscribed.add(uri)
            if not upstream.news:
                asyncio.get_running_loop().call_later(GATHER_S, self._tell, upstream)
            upstream.news.add(uri)
        elif uri in upstream.holders:
            self._fail(upstream, uri, error)
        upstream.answer(uri, error)
        upstream.dirty.set()

    def _fail(self, upstream: _Upstream, uri: str, error: ServerError) -> None:
        upstream.failed.add(uri)
        self._warnings.warn(upstream.supervisor.name, f"does not tell of changes of a resource: it {error.what}")

    def _tell(self, upstream: _Upstream) -> None:
        if upstream.current() is not None and upstream.news:
            news = frozenset(upstream.news)
            upstream.news.clear()
            self._events.tell(ResourcesSubscribed(upstream.supervisor.name, news))

    def _on_event(self, event: ServerEvent) -> None:
        upstream = self._servers.get(event.server)
        if upstream is None:
            return
        match event:
            case ServerReady() | ServerGone():
                upstream.current()
                upstream.dirty.set()
            case ResourcesUnsubscribed(server, uris):
                for uri in uris & upstream.subscribed:
                    upstream.subscribed.discard(uri)
                    upstream.news.discard(uri)
                    if uri in upstream.holders:
                        self._fail(upstream, uri, NotTold(server, "tells of it no more"))
                upstream.dirty.set()
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Holder:
    agent: Agent


class AgentSubscriptions:
    """What Agents have subscribed to (computer.txt, resources chapter, 4.3). It ends when the Agent leaves.

    Args:
        dropped: called after subscriptions were dropped that nobody has ended, with the MCP server; None: of all.
    """

    def __init__(self, upstream: UpstreamSubscriptions, dropped: Callable[[str | None], None]) -> None:
        self._upstream = upstream
        self._dropped = dropped
        self._agents: dict[Agent, set[tuple[str, str]]] = {}
        """(server, URI); none is empty, but for what is being refused."""

    @property
    def agents(self) -> frozenset[Agent]:
        return frozenset(agent for agent, mine in self._agents.items() if mine)

    async def subscribe(self, agent: Agent, server: str, uri: str) -> None:
        """Subscribe an Agent; once more says the same.

        Raises:
            ServerError: the server does not tell of it.
            RateLimited: the Agent has subscribed to `MOST` others.
        """
        mine, key = self._agents.setdefault(agent, set()), (server, uri)
        if key not in mine and len(mine) >= MOST:
            details = {"smcp_code": str(SmcpCode.RATE_LIMITED), "limit": MOST}
            raise RateLimited(f"an Agent subscribes to at most {MOST} resources of a Computer", details=details)
        mine.add(key)  # before the server is asked: what it tells at once is not lost
        try:
            await self._upstream.hold(Holder(agent), server, uri)
        except BaseException:
            if Holder(agent) not in self._upstream.holders(server, uri):
                mine.discard(key)
            raise
        if self._agents.get(agent) is mine:
            mine.add(key)  # another request for it may have given up
        elif key not in self._agents.get(agent, ()):
            self._upstream.release(Holder(agent), server, uri)  # dropped meanwhile

    def has(self, agent: Agent, uri: str) -> bool:
        return any(uri == subscribed for _, subscribed in self._agents.get(agent, ()))

    def unsubscribe(self, agent: Agent, server: str | None, uri: str) -> None:
        """End it, by any URI of the same window; None: at every server. Does nothing where there is none."""
        self._end(agent, lambda at, subscribed: server in (None, at) and is_same(subscribed, uri))

    def left(self, agent: str) -> None:
        """An Agent has left the office. If one of its name is back already, it is told to subscribe again."""
        ended = [self._end(gone, lambda server, uri: True) for gone in (agent, None)]
        if any(ended):
            self._dropped(None)

    def drop(self, server: str | None = None, uris: Collection[str] | None = None) -> None:
        """Drop the subscriptions at a server, or at all: what changed meanwhile was announced to nobody."""

        def is_concerned(at: str, uri: str) -> bool:
            return server in (None, at) and (uris is None or uri in uris)

        ended = [self._end(agent, is_concerned) for agent in tuple(self._agents)]
        if any(ended):
            self._dropped(server)

    def concerned(self, server: str, uri: str) -> Iterator[Agent]:
        if self._agents:
            keys = {(server, each) for each in (uri, *resources_above(uri))}
            yield from [agent for agent, mine in self._agents.items() if not mine.isdisjoint(keys)]

    def _end(self, agent: Agent, which: Callable[[str, str], bool]) -> bool:
        mine = self._agents.get(agent, set())
        ended = [key for key in mine if which(*key)]
        for server, uri in ended:
            mine.discard((server, uri))
            self._upstream.release(Holder(agent), server, uri)
        if not mine:
            self._agents.pop(agent, None)
        return bool(ended)
