"""Clients of one gateway, under load, and how many of them each gateway has once there are more."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from smcp_testing.profiles import scaled
from tests.e2e.restarts.load import COMPUTER, shared
from tests.e2e.restarts.workers import GUEST_S, Worker, worker
from tests.e2e.worlds.world import World

TIMEOUT_S: Final = 60
"""Of a call: it may have to wait until its Agent and its Computer have moved."""


@dataclass(frozen=True)
class Filling:
    """Each office has an Agent of our SDK and a Computer on Socket.IO; guests come and go.

    Attributes:
        rate: calls a second of each Agent. They pause at times: a session that is never idle is not moved.
        longest_s: of a call.
        joins: of guests, a second.
        in_flight: so many calls at least are in flight at each SIGTERM.
        processes: for the Agents, and for the Computers.
        rebalance_s: over how long clients are disconnected (seconds).
        drain_s: what gateways have to stop.
    """

    offices: int
    rate: float
    longest_s: float
    joins: float
    in_flight: int
    processes: int
    rebalance_s: float
    drain_s: float

    @property
    def guests(self) -> int:
        return round(self.joins * GUEST_S)

    @property
    def sockets(self) -> int:
        return 2 * self.offices + self.guests

    @property
    def names(self) -> list[str]:
        return [f"office {number}" for number in range(self.offices)]


FULL: Final = Filling(
    offices=75, rate=1.0, longest_s=5, joins=25, in_flight=20, processes=2, rebalance_s=20, drain_s=60
)
REDUCED: Final = Filling(offices=22, rate=0.5, longest_s=2, joins=8, in_flight=2, processes=1, rebalance_s=5, drain_s=8)


def of_this_profile() -> Filling:
    return FULL if scaled(ci=0, soak=1) else REDUCED


@asynccontextmanager
async def clients(load: Filling, world: World, url: str, directory: Path) -> AsyncIterator[list[Worker]]:
    """All of them, by one address; those that are `ready` are in their offices, guests have connected."""
    runs = str(directory / "runs")
    owners = [{"office": office, "name": COMPUTER, "urls": [url]} for office in load.names]
    agents = [{"office": office, "name": "caller", "computer": COMPUTER, "urls": [url]} for office in load.names]
    pace = {"rate": load.rate, "longest_s": load.longest_s}
    guests = {
        "offices": load.names,
        "names": [f"guest {number}" for number in range(load.guests)],
        "pause_s": GUEST_S,
        "urls": [url],
    }
    async with AsyncExitStack() as stack:

        async def start(name: str, module: str, told: dict[str, Any]) -> Worker:
            told = {**told, "journal": str(directory / f"{name}.journal")}
            return await stack.enter_async_context(worker(name, module, told, directory, world.mark))

        found = [
            await start(f"computers-{number}", "socketio_computers", {"members": part, "runs": runs})
            for number, part in enumerate(shared(owners, load.processes))
        ]
        for number, part in enumerate(shared(agents, load.processes)):
            told = {"members": part, "timeout_s": TIMEOUT_S, "pace": pace}
            found.append(await start(f"agents-{number}", "sdk_agents", told))
        found.append(await start("guests", "guests", guests))
        yield found


class Sockets:
    """Asks the gateways of a world that run how many sockets they have. Made by `counting`."""

    def __init__(self, world: World, http: aiohttp.ClientSession) -> None:
        self._world = world
        self._http = http
        self.seen: list[Sequence[int]] = []
        """Each answer that differs from the one before."""

    async def each(self) -> Sequence[int]:
        parts = [gateway.part for gateway in self._world.gateways if gateway.part.running]
        counts = await asyncio.gather(*(self._of(part.stats_url) for part in parts))
        if self.seen[-1:] != [counts]:
            self.seen.append(counts)
        return counts

    async def filled(self, gateways: int, least: float) -> bool:
        """Whether that many run, and each has `least` sockets or more."""
        counts = await self.each()
        return len(counts) == gateways and min(counts) >= least

    async def _of(self, url: str) -> int:
        async with self._http.get(url) as answer:
            assert answer.status == 200, f"{url}: {answer.status}"
            count: int = (await answer.json())["gateway"]["sessions"]
            return count


@asynccontextmanager
async def counting(world: World) -> AsyncIterator[Sockets]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        yield Sockets(world, http)
