"""What is done to gateways and registries while calls go on."""

import time
from pathlib import Path
from typing import Final

from smcp_testing.waiting import eventually
from tests.e2e.restarts import runs
from tests.e2e.restarts.checker import Sigterm
from tests.e2e.worlds.world import Part, World

MOMENT_S: Final = 0.1


class Rollout:
    """Args:
    path: the file of runs.
    at_least: so many calls are waited for before each SIGTERM.
    within: what a part has to end (seconds).
    """

    def __init__(self, world: World, path: Path, at_least: int, within: float) -> None:
        self.sigterms: list[Sigterm] = []
        self._world = world
        self._path = path
        self._at_least = at_least
        self._within = within
        self._read = 0
        self._ends: list[float] = []

    async def play(self, scale: int) -> None:
        """All are restarted one after the other; then one gateway is left, `scale` come, and two are left (at least
        one goes)."""
        first, *others = [gateway.part for gateway in self._world.gateways]
        for part in [
            *(gateway.part for gateway in self._world.gateways if gateway.part.running),
            *self._world.registries,
        ]:
            await self.stop(part)
            await part.start()
        for part in others:
            if part.running:
                await self.stop(part)
        for part in others[: scale - 1]:
            await part.start()
        await self.stop(first)
        for part in others[2 : scale - 1]:
            await self.stop(part)

    async def stop(self, part: Part) -> None:
        """SIGTERM, with calls in flight; it ends with 0."""
        await eventually(lambda: self._working() >= self._at_least, timeout=60)
        self.sigterms.append(Sigterm(part.name, time.monotonic()))
        code = await part.stop(self._within)
        assert code == 0, f"{part.name} ended with {code}\n{part.tail()}"

    def _working(self) -> int:
        """How many tools run, and do so a moment longer."""
        new = list(runs.read(self._path, self._read))
        self._read = self._path.stat().st_size if new else self._read
        now = time.monotonic()
        self._ends = [end for end in [*self._ends, *(run.began + run.seconds for run in new)] if end > now + MOMENT_S]
        return len(self._ends)
