"""Tools that fail, and parts that die, stand still, stop and come back.

All of it in one world of each kind, which is whole again after each scenario.
"""

from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.e2e.actors.agents import AGENTS, OpenAgent
from tests.e2e.scenarios import failing_tools, faults, moves, socketio_computers
from tests.e2e.worlds.kinds import CONTAINERS, OPEN, PROCESSES, STANDALONE, kinds
from tests.e2e.worlds.shared import SharedWorld
from tests.e2e.worlds.world import World, lease_s

pytestmark = [pytest.mark.keeps_processes, pytest.mark.alone]

SPREAD = kinds(PROCESSES, CONTAINERS)
"""Where every part can be hurt alone."""
# Those come first: pytest groups tests by the place of a parameter in its list, and each world is opened once then.
WORLDS = [*SPREAD, *kinds(STANDALONE)]

LEASE_S = lease_s(5)

FAILING_TOOLS: list[Callable[[World, OpenAgent], Awaitable[None]]] = [
    failing_tools.a_tool_that_raises_gives_a_failed_result,
    failing_tools.a_hanging_tool_is_stopped_in_time_and_other_tools_work,
    failing_tools.a_hanging_mcp_server_times_out_and_works_again,
    failing_tools.a_dying_mcp_server_is_named_and_works_again,
]
FAULTS: list[Callable[[World], Awaitable[None]]] = [
    faults.a_computer_is_killed,
    faults.a_computer_is_suspended_past_its_lease,
    faults.a_gateway_is_killed,
    faults.a_gateway_is_suspended_past_its_lease,
    faults.a_registry_is_killed,
    faults.a_registry_is_suspended_past_a_lease,
    faults.all_registries_are_suspended_with_a_join_in_flight,
    faults.nats_is_killed_for_longer_than_a_lease,
    faults.nats_is_suspended_for_longer_than_a_lease,
    socketio_computers.native_and_socketio_computers_get_each_enter_and_leave_once,
]
MOVES: list[Callable[[World], Awaitable[None]]] = [
    moves.a_stopping_gateway_loses_no_call_and_its_members_do_not_leave,
    moves.a_call_longer_than_the_drain_gets_503_with_may_have_run,
]


@pytest.fixture(scope="module", params=WORLDS)
def of_all_faults(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorld]:
    drain = {"SMCP_DRAIN_S": str(moves.DRAIN_S)}
    opened = OPEN[request.param]
    world = SharedWorld(lambda: opened(tmp_path_factory.mktemp("faults"), lease_s=LEASE_S, environment=drain))
    yield world
    world.close()


@pytest.fixture
def shared(of_all_faults: SharedWorld) -> SharedWorld:
    of_all_faults.open()
    return of_all_faults


@pytest.mark.timeout(180)
@pytest.mark.parametrize("open_agent", AGENTS.values(), ids=AGENTS.keys())
@pytest.mark.parametrize("scenario", FAILING_TOOLS, ids=lambda scenario: scenario.__name__)
async def test_failing_tool(
    scenario: Callable[[World, OpenAgent], Awaitable[None]], open_agent: OpenAgent, shared: SharedWorld
) -> None:
    with shared.hurt() as world:
        await scenario(world, open_agent)


@pytest.mark.timeout(180 + 10 * LEASE_S)
@pytest.mark.parametrize("scenario", FAULTS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("of_all_faults", SPREAD, indirect=True)
async def test_fault(
    scenario: Callable[[World], Awaitable[None]], shared: SharedWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault is over only when everybody is back."""
    with shared.hurt() as world:
        world.waits.clear()
        await scenario(world)
    _show(world, capsys)


@pytest.mark.timeout(180 + 10 * LEASE_S)
@pytest.mark.parametrize("of_all_faults", [PROCESSES], indirect=True)
@pytest.mark.parametrize(
    "scenario",
    [
        faults.a_gateway_is_suspended_with_a_call_in_flight,
        faults.all_gateways_are_suspended_with_a_call_in_flight,
    ],
    ids=lambda scenario: scenario.__name__,
)
async def test_a_suspended_gateway(
    scenario: Callable[[World], Awaitable[None]], shared: SharedWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.hurt() as world:
        world.waits.clear()
        await scenario(world)
    _show(world, capsys)


@pytest.mark.timeout(180 + 10 * LEASE_S)
@pytest.mark.parametrize("of_all_faults", SPREAD, indirect=True)
@pytest.mark.parametrize("scenario", MOVES, ids=lambda scenario: scenario.__name__)
async def test_move(scenario: Callable[[World], Awaitable[None]], shared: SharedWorld) -> None:
    with shared.hurt() as world:
        await scenario(world)


def _show(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The longest of each kind of wait."""
    longest = {wait.what: wait for wait in sorted(world.waits, key=lambda wait: wait.took)}
    with capsys.disabled():
        for wait in longest.values():
            print(f"\n  {wait}", end="")  # noqa: T201 -- a test allows more than is promised: it shows what it saw
