"""Large bodies, where every part is a process or a container of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.e2e.scenarios import large_results
from tests.e2e.worlds.kinds import CONTAINERS, OPEN, PROCESSES, kinds
from tests.e2e.worlds.world import World

pytestmark = pytest.mark.alone

SCENARIOS: list[Callable[[World], Awaitable[None]]] = [
    large_results.eight_results_of_32_mib_do_not_stop_small_calls,
    large_results.twenty_megabytes_arrive_at_our_sdk,
    large_results.twenty_megabytes_are_413_for_a_plain_client_whose_socket_stays_open,
    large_results.forty_megabytes_are_413_for_every_client,
    large_results.the_published_agent_gets_413_and_stays_connected,
    large_results.a_request_of_four_megabytes_arrives,
    large_results.a_slow_line_carries_a_result_that_takes_longer_than_a_ping,
    large_results.a_request_above_the_limit_is_413,
    large_results.a_message_of_33_mib_ends_only_its_own_connection,
]


@pytest.fixture(scope="module", params=kinds(PROCESSES, CONTAINERS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # The lease of production: pings go by it, and who reads 32 MiB on a busy machine does not answer one meanwhile.
    opened = OPEN[request.param](tmp_path_factory.mktemp("large"), more=[large_results.NEIGHBOURS])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_large_results(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)
