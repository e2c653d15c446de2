"""New gateways fill up: 1 → 4 → 2 under load, each has its part of the sockets soon, and no call is lost."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Final

import pytest

from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import comings_and_goings
from tests.e2e.actors.crowd import ENTER
from tests.e2e.actors.socketio_computer import roaming_computer
from tests.e2e.restarts import filling, runs
from tests.e2e.restarts.checker import Observed, calls_of, joins_of, summary, wrongs
from tests.e2e.restarts.filling import clients, counting
from tests.e2e.restarts.front import least_connections
from tests.e2e.restarts.load import COMPUTER
from tests.e2e.restarts.rollout import Rollout
from tests.e2e.restarts.workers import READY_S, Worker
from tests.e2e.worlds.kinds import CONTAINERS, OPEN, PROCESSES, kinds

pytestmark = [pytest.mark.keeps_processes, pytest.mark.alone, pytest.mark.timeout(scaled(ci=240, soak=1200))]

PART: Final = 0.15
"""Of all sockets, which each gateway has to carry,"""
WITHIN_S: Final = 120.0
"""so many seconds after there were others."""


@pytest.mark.parametrize("kind", kinds(CONTAINERS, PROCESSES))
async def test_new_gateways_fill_up_and_no_call_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    load = filling.of_this_profile()
    async with (
        OPEN[kind](
            tmp_path,
            gateways=4,
            later=range(1, 4),
            places=(),
            offices=load.names,
            environment={"SMCP_DRAIN_S": f"{load.drain_s:g}"},
            rebalance_s=load.rebalance_s,
        ) as world,
        least_connections([gateway.url for gateway in world.gateways]) as front,
        counting(world) as sockets,
        clients(load, world, front.url, tmp_path) as workers,
    ):
        gateways = [gateway.part for gateway in world.gateways]
        rollout = Rollout(world, tmp_path / "runs", load.in_flight, within=load.drain_s + 30)
        for one in workers:
            await one.heard("ready", READY_S)
        assert await sockets.each() == [load.sockets]
        _tell(workers, "begin")
        await asyncio.gather(*(part.start() for part in gateways[1:]))
        async with roaming_computer([world.url(1), world.url(0)], load.names[0], "watcher") as watcher:
            filled_s = [await _filled(sockets, 4, PART * load.sockets)]
            for part in gateways[2:]:
                await rollout.stop(part)
            filled_s.append(await _filled(sockets, 2, PART * load.sockets))
            moves = {name: comings_and_goings(watcher.notices, name) for name in ("caller", COMPUTER)}
            assert moves == {"caller": [], COMPUTER: []}, "the office heard of nobody who moved"
            await eventually(
                lambda: any(told[0] == ENTER for told in watcher.notices), timeout=60, message="it is deaf"
            )
        _tell(workers, "finish")
        for one in workers:
            await one.heard("done", filling.TIMEOUT_S + 90)
        _tell(workers, "go")
        await asyncio.gather(*(one.gone() for one in workers))
    journal = list(_journal(tmp_path))
    seen = Observed(list(runs.read(tmp_path / "runs")), calls_of(journal), rollout.sigterms, joins_of(journal))
    with capsys.disabled():
        took = ", ".join(f"{seconds:.0f} s" for seconds in filled_s)
        print(f"\n{summary(seen)}\nfilled after {took}: {_shown(sockets.seen)}")  # noqa: T201 -- what a long run was for
    wrong = wrongs(seen, load.in_flight)
    with world.telling():
        assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong[:50]])


async def _filled(sockets: filling.Sockets, gateways: int, least: float) -> float:
    """How long it takes until each of so many gateways has `least` sockets (seconds)."""
    began = time.monotonic()
    await eventually(
        lambda: sockets.filled(gateways, least), timeout=WITHIN_S, message=f"not even: {sockets.seen[-3:]}"
    )
    return time.monotonic() - began


def _shown(seen: list[Any]) -> str:
    """A few of the counts, evenly."""
    return " ".join(str(list(counts)) for counts in [*seen[:: max(1, len(seen) // 8)], *seen[-1:]])


def _tell(workers: list[Worker], word: str) -> None:
    for one in workers:
        one.tell(word)


def _journal(directory: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(directory.glob("*.journal"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
