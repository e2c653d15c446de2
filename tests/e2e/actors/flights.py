"""A call that is on its way while something is hurt."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from smcp_testing.waiting import Stopwatch, eventually
from tests.e2e.actors.agents import SdkAgent
from tests.e2e.actors.bare import FlatError
from tests.e2e.worlds.world import ComputerHost, Wait, World

AT_ONCE_S = 1.0
"""In which what was in flight at a death is answered."""
SLACK_S = 0.75
"""What starting, reading and writing may take on top of any promise."""


@dataclass(frozen=True)
class Flight:
    """A call of `sleep` that is on its way."""

    host: ComputerHost
    mark: str

    def runs(self) -> int:
        """How often it was run up to now."""
        ran = self.host.ran
        return ran.read_text(encoding="utf-8").split("\n").count(f"sleep {self.mark}") if ran.exists() else 0


@asynccontextmanager
async def in_flight(
    agent: SdkAgent, host: ComputerHost, flights: list[Flight], *, seconds: float
) -> AsyncIterator["asyncio.Task[dict[str, Any]]"]:
    """A call of `sleep` that runs by now; after the block it has ended.

    It joins `flights`: that it ran once can be said only after what is hurt has come back.
    """
    flight = Flight(host, uuid4().hex)
    flights.append(flight)
    call = asyncio.create_task(
        agent.call(host.name, "sleep", {"seconds": seconds, "mark": flight.mark}, timeout=int(seconds) + 30)
    )
    try:
        await eventually(lambda: call.done() or flight.runs() == 1)
        if call.done():
            raise AssertionError(f"the call ended before it ran: {call.exception() or call.result()}")
        yield call
        assert call.done()
    finally:
        call.cancel()
        await asyncio.wait({call})


async def refused_within(seconds: float, answer: Awaitable[Any], world: World) -> FlatError:
    """The error that a call ends with. Raises AssertionError where it comes late, or is none."""
    with pytest.raises(FlatError) as refused:
        async with timed("an error for what was in flight", seconds, world):
            await asyncio.wait_for(answer, seconds + 30)
    return refused.value


@asynccontextmanager
async def timed(what: str, promised: float, world: World) -> AsyncIterator[None]:
    """The block has to end within `promised` seconds, undisturbed; how long it took is kept.

    Raises:
        AssertionError: it took longer.
    """
    watch = Stopwatch()
    try:
        yield
    finally:
        wait = Wait(what, promised, watch.took, watch.undisturbed)
        world.waits.append(wait)
        assert wait.undisturbed <= promised + SLACK_S, wait
