"""Two buses that talk to each other: the real one, and the bad one while it behaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import BusConfig, NatsBus, open_bus
from smcp_testing.bad_bus import BadBus

AnyBus = NatsBus | BadBus
OpenBus = Callable[[BusConfig], AbstractAsyncContextManager[AnyBus]]

LIMIT = 2 * 1024 * 1024
"""Bytes that a body may have."""


@asynccontextmanager
async def real(config: BusConfig) -> AsyncIterator[AnyBus]:
    async with open_bus(config) as bus:
        yield bus


@asynccontextmanager
async def bad_at_rest(config: BusConfig) -> AsyncIterator[AnyBus]:
    async with open_bus(config) as bus, BadBus(bus, seed=1) as bad:
        yield bad


BUSES: dict[str, OpenBus] = {"nats": real, "bad bus at rest": bad_at_rest}


@dataclass
class Pair:
    """Who asks, and who serves."""

    asker: AnyBus
    server: AnyBus


OpenPair = Callable[[], AbstractAsyncContextManager[Pair]]
"""`async with pair() as two:` opens both buses in the test's own body."""


def pair_of(open_one: OpenBus, nats_url: str) -> OpenPair:
    config = BusConfig(url=nats_url, max_payload=LIMIT, connect_timeout=5)

    @asynccontextmanager
    async def both() -> AsyncIterator[Pair]:
        async with open_one(config) as asker, open_one(config) as server:
            yield Pair(asker, server)

    return both


async def echo(incoming: Incoming) -> Reply:
    return Reply(incoming.body)


def holding() -> tuple[asyncio.Event, asyncio.Event, Callable[[Incoming], Awaitable[Reply]]]:
    """A handler that says that it runs and waits until it is let go."""
    runs, go = asyncio.Event(), asyncio.Event()

    async def handler(incoming: Incoming) -> Reply:
        runs.set()
        await go.wait()
        return Reply(incoming.body)

    return runs, go, handler
