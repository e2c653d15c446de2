"""The faults of networks and machines, in containers, while calls go on all the time.

Each test holds the calls in flight, new calls, the members and what comes afterwards against what is promised.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.outages import clocks, cuts, full_disk, memory, nodes, pauses
from tests.e2e.outages.offices import SHOWN, places
from tests.e2e.outages.scene import LEASE_S
from tests.e2e.worlds.containers import open_containers
from tests.e2e.worlds.shared import SharedWorld
from tests.e2e.worlds.world import World

QUIET = {"SMCP_LOG_LEVEL": "warning"}
"""Of so many calls."""

pytestmark = [pytest.mark.keeps_processes, pytest.mark.alone, pytest.mark.timeout(180 + 20 * LEASE_S)]

Scenario = Callable[[World, Path], Awaitable[None]]


CLUSTER: Mapping[str, Any] = {"nodes": 3}
ONE_NODE: Mapping[str, Any] = {
    "store": "8m",
    "ahead": clocks.AHEAD,
    "environment": {**QUIET, "SMCP_MOVE_S": f"{clocks.MOVE_S:g}"},
}
"""Kinds of worlds: the arguments of `open_containers`. Each costs its start and its end, so that there are two."""

IN_A_CLUSTER: list[Scenario] = [
    cuts.a_gateway_is_cut_off_for_half_a_lease,
    cuts.a_gateway_is_cut_off_for_two_leases,
    cuts.a_computer_is_cut_off_for_half_a_lease,
    cuts.a_computer_is_cut_off_for_two_leases,
    pauses.a_computer_is_suspended_past_its_lease,
    pauses.a_name_that_was_claimed_during_the_pause_stays_claimed,
    nodes.the_node_of_a_gateway_is_killed,
    nodes.the_leader_is_killed,
    nodes.two_of_three_nodes_are_killed,
    memory.a_gateway_is_killed_by_its_memory_limit,
    pauses.all_processes_are_restarted_one_by_one,
]
WITH_ONE_NODE: list[Scenario] = [
    clocks.clocks_are_minutes_apart,
    full_disk.the_storage_limit_of_jetstream_is_reached,
    full_disk.the_disk_is_full,
]


class Outages(SharedWorld):
    """The world of all outages of a kind. Its directory is another one whenever it is opened anew."""

    def __init__(self, options: Mapping[str, Any], directories: Callable[[], Path]) -> None:
        super().__init__(self._new)
        self._options = {"environment": QUIET, **options}
        self._directories = directories
        self.directory = Path()

    def _new(self) -> AbstractAsyncContextManager[World]:
        self.directory = self._directories()
        return open_containers(
            self.directory, lease_s=LEASE_S, places=places(self.directory), shown=SHOWN, **self._options
        )


@pytest.fixture(scope="module")
def of_all_outages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outages]:
    world = Outages(request.param, lambda: tmp_path_factory.mktemp("outages"))
    yield world
    world.close()


@pytest.fixture
def outages(of_all_outages: Outages) -> Outages:
    of_all_outages.open()
    return of_all_outages


async def hurt(scenario: Scenario, outages: Outages) -> None:
    with outages.hurt() as world:
        await scenario(world, outages.directory)


# A test for each kind of world: pytest opens a parameter's world once where its place in the list is the same.


@pytest.mark.parametrize("scenario", IN_A_CLUSTER, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("of_all_outages", [CLUSTER], indirect=True, ids=["cluster"])
async def test_outage_in_a_cluster(scenario: Scenario, outages: Outages) -> None:
    await hurt(scenario, outages)


@pytest.mark.parametrize("scenario", WITH_ONE_NODE, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("of_all_outages", [ONE_NODE], indirect=True, ids=["one node"])
async def test_outage_with_one_node(scenario: Scenario, outages: Outages) -> None:
    await hurt(scenario, outages)
