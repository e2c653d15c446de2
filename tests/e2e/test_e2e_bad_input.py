"""Bad input, in every world: requests, names, configurations. Tools that fail are among the faults."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.scenarios import bad_input, configurations, names, wrong_secrets
from tests.e2e.worlds.kinds import CONTAINERS, OPEN, PROCESSES, STANDALONE, kinds
from tests.e2e.worlds.world import World

BY_ITSELF: list[Callable[[World], Awaitable[None]]] = [
    bad_input.a_missing_field_is_named,
    bad_input.a_field_of_another_type_is_named,
    bad_input.requests_before_joining_get_the_same_answer,
    bad_input.a_payload_that_is_not_one_object_is_refused,
    bad_input.a_short_request_above_64_kib_is_413,
    bad_input.unknown_fields_are_accepted,
    bad_input.a_payload_that_is_nested_too_deeply_is_refused,
    bad_input.unknown_events_are_refused,
    names.any_text_is_a_legal_name,
    names.a_name_with_wildcards_reaches_only_its_own_computer,
    names.an_illegal_name_is_refused,
    names.a_computer_with_an_unusual_name_works,
    configurations.a_missing_command_stops_only_its_own_server,
]
ONCE: list[Callable[[World, Path], Awaitable[None]]] = [
    configurations.an_unusable_file_ends_the_command_with_2,
    configurations.an_illegal_name_ends_the_command_with_2,
]


SPREAD: list[Callable[[World], Awaitable[None]]] = [
    wrong_secrets.a_process_with_a_wrong_secret_says_so_and_works_once_it_is_right,
    wrong_secrets.a_gateway_whose_secret_is_revoked_says_so_and_reconnects,
]


@pytest.fixture(scope="module", params=kinds(STANDALONE, PROCESSES, CONTAINERS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One world for all scenarios: none of them may hurt it."""
    opened = OPEN[request.param](tmp_path_factory.mktemp(request.param), more=[names.ODD])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.fixture(autouse=True)
def _nothing_left_behind(_no_task_left: None) -> None:
    """In place of that of all tests: parts of the world are restarted, and looked for when the world ends."""


@pytest.mark.parametrize("scenario", BY_ITSELF, ids=lambda scenario: scenario.__name__)
async def test_bad_requests_and_names(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)


@pytest.mark.parametrize("scenario", ONCE, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("world", [PROCESSES], indirect=True)
async def test_bad_configurations(
    world: World, scenario: Callable[[World, Path], Awaitable[None]], tmp_path: Path
) -> None:
    with world.telling():
        await scenario(world, tmp_path)


@pytest.mark.timeout(240)  # three processes end and start, in containers too
@pytest.mark.parametrize("scenario", SPREAD, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("world", kinds(PROCESSES, CONTAINERS), indirect=True)
async def test_wrong_secrets(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)
