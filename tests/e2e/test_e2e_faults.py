"""Parts that die, stand still and come back, in worlds where every part can be hurt alone."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.e2e.scenarios import faults, moves, socketio_computers
from tests.e2e.worlds.containers import open_containers
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.shared import SharedWorld
from tests.e2e.worlds.world import LEASE_S, World, lease_s

pytestmark = pytest.mark.alone

WORLDS: dict[str, Callable[..., AbstractAsyncContextManager[World]]] = {
    "processes": open_processes,
    "containers": open_containers,
}

CALM_LEASE_S = lease_s(5)
"""Of 2 s a loaded machine takes too much to promise anything within a lease."""

FAULTS: list[Callable[[World], Awaitable[None]]] = [
    faults.a_computer_is_killed,
    faults.a_computer_stands_still_past_its_lease,
    faults.a_gateway_is_killed,
    faults.a_gateway_stands_still_past_its_lease,
    faults.a_registry_is_killed,
    faults.a_registry_stands_still_past_a_lease,
    faults.all_registries_stand_still_with_a_join_in_flight,
    faults.nats_is_killed_for_longer_than_a_lease,
    faults.nats_stands_still_for_longer_than_a_lease,
    socketio_computers.native_and_socketio_computers_see_each_other_come_and_go_exactly_once,
]
DRAINS_S: dict[Callable[[World], Awaitable[None]], float] = {
    moves.a_gateway_that_stops_loses_no_call_and_nobody_sees_a_move: moves.DRAIN_S,
    moves.a_call_that_outlasts_the_drain_is_503_and_may_have_run: moves.SHORT_DRAIN_S,
}


@pytest.fixture(scope="module", params=WORLDS)
def of_all_faults(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorld]:
    world = SharedWorld(lambda: WORLDS[request.param](tmp_path_factory.mktemp("faults")))
    yield world
    world.close()


@pytest.fixture(autouse=True)
def _nothing_left_behind(_no_task_left: None) -> None:
    """In place of that of all tests: the world is looked at when it ends."""


@pytest.fixture
def shared(of_all_faults: SharedWorld) -> SharedWorld:
    of_all_faults.open()
    return of_all_faults


@pytest.mark.timeout(180 + 10 * LEASE_S)
@pytest.mark.parametrize("scenario", FAULTS, ids=lambda scenario: scenario.__name__)
async def test_fault(
    scenario: Callable[[World], Awaitable[None]], shared: SharedWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one world, since a fault is over only when everybody is back."""
    with shared.hurt() as world:
        world.waits.clear()
        await scenario(world)
    _show(world, capsys)


@pytest.mark.timeout(180 + 10 * CALM_LEASE_S)
@pytest.mark.parametrize(
    "scenario",
    [
        faults.a_gateway_stands_still_with_a_call_in_flight,
        faults.all_gateways_stand_still_with_a_call_in_flight,
    ],
    ids=lambda scenario: scenario.__name__,
)
async def test_what_was_in_flight_at_a_gateway_that_stands_still_is_settled_within_the_lease(
    scenario: Callable[[World], Awaitable[None]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_processes(tmp_path, lease_s=CALM_LEASE_S) as world:
        await scenario(world)
    _show(world, capsys)


@pytest.mark.timeout(180 + 10 * LEASE_S)
@pytest.mark.parametrize("world_name", WORLDS)
@pytest.mark.parametrize("scenario", DRAINS_S, ids=lambda scenario: scenario.__name__)
async def test_move(scenario: Callable[[World], Awaitable[None]], world_name: str, tmp_path: Path) -> None:
    environment = {"SMCP_DRAIN_S": str(DRAINS_S[scenario])}
    async with WORLDS[world_name](tmp_path, environment=environment) as world:
        with world.telling():
            await scenario(world)


def _show(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The longest of each kind of wait."""
    longest = {wait.what: wait for wait in sorted(world.waits, key=lambda wait: wait.took)}
    with capsys.disabled():
        for wait in longest.values():
            print(f"\n  {wait}", end="")  # noqa: T201 -- a test allows more than is promised: it shows what it saw
