"""The faults of networks and machines, in containers: NATS is three nodes, and calls go on all the time.

Each test holds the calls in flight, new calls, the members and what comes afterwards against what is promised.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.e2e.outages import cuts, memory, nodes, pauses, rolling
from tests.e2e.outages.offices import SHOWN, places
from tests.e2e.worlds.containers import open_containers
from tests.e2e.worlds.shared import SharedWorld
from tests.e2e.worlds.world import World, lease_s

LEASE_S = lease_s(3)

QUIET = {"SMCP_LOG_LEVEL": "warning"}
"""Of so many calls."""

pytestmark = [pytest.mark.alone, pytest.mark.timeout(180 + 20 * LEASE_S)]

Scenario = Callable[[World, Path], Awaitable[None]]
OUTAGES: list[Scenario] = [
    cuts.a_gateway_is_cut_off_for_half_a_lease,
    cuts.a_gateway_is_cut_off_for_two_leases,
    cuts.a_computer_is_cut_off_for_half_a_lease,
    cuts.a_computer_is_cut_off_for_two_leases,
    pauses.a_computer_stands_still_past_its_lease,
    pauses.a_name_that_was_taken_meanwhile_stays_taken,
    nodes.the_node_of_a_gateway_is_killed,
    nodes.the_leader_is_killed,
    nodes.two_of_three_nodes_are_killed,
    memory.a_gateway_is_killed_by_its_memory_limit,
    rolling.everything_is_restarted_one_after_the_other,
]


class Cluster(SharedWorld):
    """The world of all outages. Its directory is another one whenever it is opened anew."""

    def __init__(self, directories: Callable[[], Path]) -> None:
        super().__init__(self._new)
        self._directories = directories
        self.directory = Path()

    def _new(self) -> AbstractAsyncContextManager[World]:
        self.directory = self._directories()
        return open_containers(
            self.directory, lease_s=LEASE_S, environment=QUIET, nodes=3, places=places(self.directory), shown=SHOWN
        )


@pytest.fixture(scope="module")
def of_all_outages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    world = Cluster(lambda: tmp_path_factory.mktemp("outages"))
    yield world
    world.close()


@pytest.fixture(autouse=True)
def _nothing_left_behind(_no_task_left: None) -> None:
    """In place of that of all tests: the world is looked at when it ends."""


@pytest.fixture
def cluster(of_all_outages: Cluster) -> Cluster:
    of_all_outages.open()
    return of_all_outages


@pytest.mark.parametrize("scenario", OUTAGES, ids=lambda scenario: scenario.__name__)
async def test_outage(scenario: Scenario, cluster: Cluster) -> None:
    with cluster.hurt() as world:
        await scenario(world, cluster.directory)
