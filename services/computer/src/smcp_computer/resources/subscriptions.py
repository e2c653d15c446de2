"""Subscriptions to resources: those of Agents at this Computer, and those of this Computer at its MCP servers.

A server is asked once for a resource, however many hold it: the desktop, the finder and Agents. What the desktop and
the finder want and the server refused is asked for again with its next list. An Agent's subscription is not restored:
after any interruption it is dropped, and a notification asks the Agent to subscribe again (ADR 0019).
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from smcp_computer.mcp import events
from smcp_computer.mcp.errors import ServerError, ServerNotRunning
from smcp_computer.mcp.resources import Resources
from smcp_computer.mcp.supervisor import Supervisor
from smcp_proto.errors import MAX_SUBSCRIPTIONS, too_many_subscriptions
from smcp_proto.uris import resources_above, window_uri, without_query
from smcp_service.lifecycle import Background

Holder = str | None | tuple[()]
"""An Agent's name; None: its request has none. An office has one Agent at a time, so that is enough."""
OWN: Final = ()
"""This Computer: for its desktop and finder."""


@dataclass
class _Upstream:
    holders: defaultdict[str, set[Holder]] = field(default_factory=lambda: defaultdict(set))
    """By URI."""
    subscribed: set[str] = field(default_factory=set)
    asking: "dict[str, asyncio.Task[ServerError | None]]" = field(default_factory=dict)
    """The server is being asked to tell of these, or to tell no more."""


@dataclass(eq=False)
class Subscriptions:
    """Servers are asked in `tasks`: no caller's time-out breaks that off. An Agent's subscriptions (computer.txt,
    resources chapter, 4.3) end when it leaves. `dropped`: called after some were dropped that nobody has ended, with
    the MCP server; None: of all."""

    _supervisors: Mapping[str, Supervisor]
    _events: events.ServerEvents
    _tasks: Background
    _dropped: Callable[[str | None], None]

    def __post_init__(self) -> None:
        self._servers = defaultdict[str, _Upstream](_Upstream)
        self._events.listen(self._on_event)

    def holders(self, server: str, uri: str) -> frozenset[Holder]:
        return frozenset(self._servers[server].holders.get(uri, ()))

    def subscribed(self, server: str) -> frozenset[str]:
        return frozenset(self._servers[server].subscribed)

    async def hold(self, holder: Holder, server: str, uri: str) -> None:
        """Have the server send updates of a resource until `release`, or until the server goes. Raises ServerError: it
        does not, or the holder released it meanwhile; nothing is held then."""
        upstream = self._servers[server]
        upstream.holders[uri].add(holder)
        try:
            while uri not in upstream.subscribed:
                self._ask(server, [uri])
                if (asking := upstream.asking.get(uri)) is None:
                    raise ServerNotRunning(server, "is not ready, or has no resources")
                await asyncio.wait([asking])
                if (error := asking.result()) is not None:
                    raise error
                if holder not in self.holders(server, uri):
                    raise ServerNotRunning(server, "answered after the subscription had ended")
        except (ServerError, asyncio.CancelledError):
            self.release(holder, server, uri)
            raise

    def release(self, holder: Holder, server: str, uri: str) -> None:
        holders = self._servers[server].holders
        if holder in holders.get(uri, ()):
            holders[uri].discard(holder)
            if not holders[uri]:
                del holders[uri]
                self._ask(server, [uri])

    def want(self, server: str, uris: Collection[str]) -> None:
        """Set what this Computer itself holds of the server, in the background; a refusal is a warning."""
        holders, wanted = self._servers[server].holders, set(uris)
        for uri in [uri for uri, found in holders.items() if OWN in found and uri not in wanted]:
            self.release(OWN, server, uri)
        for uri in wanted:
            holders[uri].add(OWN)
        self._ask(server, uris)

    def _ask(self, server: str, uris: Iterable[str]) -> None:
        """Subscribe to those of them that are held and missing, and end those without a holder."""
        upstream = self._servers[server]
        if (connection := self._connection(server)) is None:
            return
        for uri in uris:
            if uri not in upstream.asking and (uri in upstream.holders) != (uri in upstream.subscribed):
                upstream.subscribed.discard(uri)
                asking = self._change(server, connection, uri, subscribe=uri in upstream.holders)
                upstream.asking[uri] = self._tasks.start(asking, name=f"subscription:{server}")

    def _connection(self, server: str) -> Resources | None:
        supervisor = self._supervisors.get(server)
        return None if supervisor is None else supervisor.resources

    async def _change(self, server: str, connection: Resources, uri: str, *, subscribe: bool) -> ServerError | None:
        upstream, error = self._servers[server], None
        try:
            await (connection.subscribe(uri) if subscribe else connection.unsubscribe(uri))
        except ServerError as refused:
            error = refused
        if self._connection(server) is not connection:
            return error or ServerNotRunning(server, "went away before it answered")
        del upstream.asking[uri]
        is_held = uri in upstream.holders
        if subscribe and error is None:
            upstream.subscribed.add(uri)
            self._events.tell(events.ResourceSubscribed(server, uri))
        elif subscribe and error is not None and is_held:
            self._events.warn(server, f"does not announce changes of a resource: it {error.what}")
        if is_held != subscribe:
            self._ask(server, [uri])
        return error if subscribe else None  # what a server tells unasked is ignored

    def _on_event(self, event: events.ServerEvent) -> None:
        upstream = self._servers[event.server]
        match event:
            case events.ServerRemoved():
                del self._servers[event.server]
            case events.ServerReady():
                self._ask(event.server, upstream.holders)
            case events.ServerGone():
                upstream.subscribed.clear()
                upstream.asking.clear()
            case events.ResourcesUnsubscribed(_, uris):
                upstream.subscribed -= uris

    @property
    def agents(self) -> frozenset[str | None]:
        return frozenset(agent for agent, _, _ in self._of_agents())

    async def subscribe(self, agent: str | None, server: str, uri: str) -> None:
        """Subscribe an Agent; once more says the same. Raises as `hold`, and RateLimited: the
        Agent has subscribed to `MAX_SUBSCRIPTIONS` others."""
        mine = {(at, subscribed) for each, at, subscribed in self._of_agents() if each == agent}
        if (server, uri) not in mine and len(mine) >= MAX_SUBSCRIPTIONS:
            raise too_many_subscriptions(MAX_SUBSCRIPTIONS)
        await self.hold(agent, server, uri)

    def unsubscribe(self, agent: str | None, server: str | None, uri: str) -> None:
        """End it, by any URI of the same window or document; None: at every server."""
        same = {uri, without_query(uri), window_uri(uri)} - {None}
        self._end(
            lambda each, at, held: each == agent and server in (None, at) and bool(same & {held, window_uri(held)})
        )

    def left(self, agent: str) -> None:
        """An Agent has left the office. If one of its name is back already, it is asked to subscribe again."""
        if self._end(lambda each, at, held: each in (agent, None)):
            self._dropped(None)

    def drop(self, server: str | None = None, uris: Collection[str] | None = None) -> None:
        """Drop the subscriptions at a server, or at all: what changed meanwhile was announced to nobody."""
        if self._end(lambda each, at, held: server in (None, at) and (uris is None or held in uris)):
            self._dropped(server)

    def concerned(self, server: str, uri: str) -> set[str | None]:
        """The Agents that subscribed to a resource, or to one above it."""
        holders = (self.holders(server, each) for each in (uri, *resources_above(uri)))
        return {holder for each in holders for holder in each if not isinstance(holder, tuple)}

    def _of_agents(self) -> Iterator[tuple[str | None, str, str]]:
        """Agent, server and URI."""
        for server, upstream in self._servers.items():
            for uri, holders in upstream.holders.items():
                yield from ((each, server, uri) for each in holders if not isinstance(each, tuple))

    def _end(self, which: Callable[[str | None, str, str], bool]) -> bool:
        ended = [each for each in self._of_agents() if which(*each)]
        for agent, server, uri in ended:
            self.release(agent, server, uri)
        return bool(ended)
