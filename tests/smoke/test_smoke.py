"""One world of processes: calls of our SDK, tools that fail, and the death of each kind of part.

`make e2e` plays these scenarios and many more, also in containers. Here they catch early what breaks the whole.
"""

from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.e2e.actors.agents import sdk_agent
from tests.e2e.scenarios import calls, failing_tools, faults, moves
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.shared import SharedWorld
from tests.e2e.worlds.world import LEASE_S, World

FAULTS: list[Callable[[World], Awaitable[None]]] = [
    faults.a_computer_is_killed,
    faults.a_gateway_is_killed,
    faults.a_registry_is_killed,
    faults.nats_is_killed_for_longer_than_a_lease,
    moves.a_stopping_gateway_loses_no_call_and_its_members_do_not_leave,
]

pytestmark = [pytest.mark.keeps_processes, pytest.mark.timeout(180 + 10 * LEASE_S)]


@pytest.fixture(scope="module")
def of_this_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorld]:
    drain = {"SMCP_DRAIN_S": str(moves.DRAIN_S)}
    world = SharedWorld(lambda: open_processes(tmp_path_factory.mktemp("smoke"), environment=drain))
    yield world
    world.close()


@pytest.fixture
def shared(of_this_file: SharedWorld) -> SharedWorld:
    of_this_file.open()
    return of_this_file


@pytest.mark.parametrize(
    "scenario",
    [
        calls.an_agent_on_one_gateway_calls_tools_on_both_computers,
        failing_tools.a_tool_that_raises_gives_a_failed_result,
        failing_tools.a_dying_mcp_server_is_named_and_works_again,
    ],
    ids=lambda scenario: scenario.__name__,
)
async def test_calls(scenario: Callable[..., Awaitable[None]], shared: SharedWorld) -> None:
    with shared.hurt() as world:
        await scenario(world, sdk_agent)


@pytest.mark.parametrize("scenario", FAULTS, ids=lambda scenario: scenario.__name__)
async def test_fault(scenario: Callable[[World], Awaitable[None]], shared: SharedWorld) -> None:
    """A fault is over only when everybody is back."""
    with shared.hurt() as world:
        await scenario(world)
