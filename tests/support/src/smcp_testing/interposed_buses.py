"""Buses that are sound but for what a test does to requests where they are served: holds them back, runs them late."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from smcp_bus.bus import Incoming, Reply, RequestHandler, Subscription
from smcp_bus.nats.bus import Bus
from smcp_testing.bad_bus import BadBus
from smcp_testing.bad_buses import BadBuses, Faults

Between = Callable[[Incoming, RequestHandler], Awaitable[Reply]]
"""Given a request and its handler: runs it, or not, or later, and gives the answer."""


class _Interposed(BadBus):
    def __init__(self, bus: Bus, between: Between) -> None:
        super().__init__(bus, 0)
        self._between = between

    async def serve(self, subject: str, handler: RequestHandler, *, queue: str = "", limit: int = 1024) -> Subscription:
        async def handle(incoming: Incoming) -> Reply:
            return await self._between(incoming, handler)

        return await super().serve(subject, handle, queue=queue, limit=limit)


async def as_it_is(incoming: Incoming, handler: RequestHandler) -> Reply:
    """Does nothing to it."""
    return await handler(incoming)


@dataclass
class InterposedBuses(BadBuses):
    """For `gateway_world(bad=…)`."""

    faults: Faults = field(default_factory=Faults)
    between: Between = as_it_is
    """May be changed at any time."""

    @asynccontextmanager
    async def over(self, bus: Bus) -> AsyncIterator[BadBus]:
        async with _Interposed(bus, self._between) as interposed:
            self.made.append(interposed)
            yield interposed

    async def _between(self, incoming: Incoming, handler: RequestHandler) -> Reply:
        return await self.between(incoming, handler)
