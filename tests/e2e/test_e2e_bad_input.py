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
    bad_input.whoever_has_not_joined_is_told_the_same,
    bad_input.what_is_not_one_object_is_refused,
    bad_input.a_small_request_with_too_much_in_it_is_413,
    bad_input.fields_that_nobody_knows_are_no_fault,
    bad_input.what_is_nested_too_deeply_is_refused_and_the_rest_comes_back,
    bad_input.events_that_do_not_exist_are_refused,
    names.any_text_is_a_name,
    names.a_name_reaches_nobody_else,
    names.what_is_no_name_is_refused,
    names.a_computer_with_an_odd_name_does_all_that_others_do,
    configurations.a_command_that_does_not_exist_keeps_only_its_own_server_from_starting,
]
ONCE: list[Callable[[World, Path], Awaitable[None]]] = [
    configurations.a_file_that_cannot_be_used_is_refused_with_2,
    configurations.a_name_that_is_none_is_refused_with_2,
]


SPREAD: list[Callable[[World], Awaitable[None]]] = [
    wrong_secrets.who_is_refused_by_nats_says_so_and_works_once_its_secret_is_right,
    wrong_secrets.a_gateway_that_is_refused_later_says_so_and_comes_back,
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
async def test_by_itself(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)


@pytest.mark.parametrize("scenario", ONCE, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("world", [PROCESSES], indirect=True)
async def test_in_one_world(world: World, scenario: Callable[[World, Path], Awaitable[None]], tmp_path: Path) -> None:
    with world.telling():
        await scenario(world, tmp_path)


@pytest.mark.timeout(240)  # three processes end and start, in containers too
@pytest.mark.parametrize("scenario", SPREAD, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("world", kinds(PROCESSES, CONTAINERS), indirect=True)
async def test_where_parts_are_by_themselves(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)
