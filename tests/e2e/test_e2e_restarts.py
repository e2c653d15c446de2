"""No call is lost while all gateways and registries are restarted one after the other, and gateways come and go."""

import asyncio
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import published_env
from smcp_testing.profiles import scaled
from tests.e2e.restarts import load as loads
from tests.e2e.restarts import runs
from tests.e2e.restarts.checker import Observed, calls_of, joins_of, lost_of, summary, wrongs
from tests.e2e.restarts.front import sticky
from tests.e2e.restarts.rates import Rates, reached, too_few
from tests.e2e.restarts.rollout import Rollout
from tests.e2e.restarts.workers import READY_S, Worker, callers, computers
from tests.e2e.worlds.processes import open_processes

pytestmark = pytest.mark.alone

SCALE = scaled(ci=2, soak=4)


@pytest.mark.timeout(published_env.INSTALL_S + scaled(ci=150, soak=1800))
async def test_no_call_is_lost_while_gateways_and_registries_restart_and_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = loads.of_this_profile()
    await asyncio.to_thread(published_env.python)
    before = _cpu_s()
    async with open_processes(
        tmp_path,
        gateways=SCALE,
        later=range(2, SCALE),
        environment={"SMCP_DRAIN_S": str(load.drain_s)},
        places=(),
        known=load.places(),
        offices=load.offices_of(),
    ) as world:
        rollout = Rollout(world, tmp_path / "runs", load.in_flight, within=load.drain_s + 30)
        async with (
            sticky([gateway.url for gateway in world.gateways]) as front,
            computers(load, world, tmp_path) as there,
            callers(load, world, front.url, tmp_path) as calling,
        ):
            everybody = [*there, *calling]
            await _hear(everybody, "ready", READY_S)
            _tell(everybody, "begin")
            await rollout.play(SCALE)
            for workers in (calling, there):
                _tell(workers, "finish")
                await _hear(workers, "done", load.timeout_s + 90)
            _tell(everybody, "go")
            await asyncio.gather(*(one.gone() for one in everybody))
    journal = list(_journal(tmp_path))
    ran = list(runs.read(tmp_path / "runs"))
    seen = Observed(ran, calls_of(journal), rollout.sigterms, joins_of(journal), lost_of(journal))
    with capsys.disabled():
        print(f"\n{summary(seen)}\n{reached(seen)}")  # noqa: T201 -- what a long run was for
        own = sum(one.cpu_s for one in everybody)
        print(f"CPU seconds: {own:.0f} of the load, {_cpu_s() - before - own:.0f} of the system")  # noqa: T201 -- as above
    wrong = [*too_few(reached(seen), Rates(load.rate, load.joins), load.enough), *wrongs(seen, load.in_flight)]
    with world.telling():
        assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong[:50]])


def _cpu_s() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tell(workers: list[Worker], word: str) -> None:
    for one in workers:
        one.tell(word)


async def _hear(workers: list[Worker], word: str, within: float) -> None:
    for one in workers:
        await one.heard(word, within)


def _journal(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("*.journal")):
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
