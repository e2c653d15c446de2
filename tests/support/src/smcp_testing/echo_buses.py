"""Two ends of a nats-server, one of which answers with what it is asked."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import Bus, BusConfig, open_bus

MIB = 1024 * 1024


def body_of(size: int) -> bytes:
    """Bytes in which every chunk differs from every other."""
    return random.Random(size).randbytes(size)  # quick: a loop that is held for seconds loses its connection


async def echo(incoming: Incoming) -> Reply:
    return Reply(incoming.body, {"Mine": "kept"})


@asynccontextmanager
async def two(url: str, **options: int) -> AsyncIterator[tuple[Bus, Bus]]:
    """Who asks and who serves `echo`."""
    config = BusConfig(url=url, **options)  # type: ignore[arg-type]
    async with open_bus(config) as asker, open_bus(config) as server:
        await server.serve("echo", echo)
        yield asker, server
