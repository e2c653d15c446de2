"""The scenarios, in every world."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.e2e.actors.agents import AGENTS, OpenAgent
from tests.e2e.scenarios import calls, context, credentials, leftovers, metrics, rooms, socketio_computers
from tests.e2e.worlds.kinds import CONTAINERS, OPEN, PROCESSES, STANDALONE, kinds
from tests.e2e.worlds.world import World

WITH_AN_AGENT: list[Callable[[World, OpenAgent], Awaitable[None]]] = [
    calls.an_agent_on_one_gateway_calls_tools_on_both_computers,
    calls.a_call_runs_once_on_the_computer_it_names,
    calls.a_tool_that_fails_is_a_result_and_not_an_error,
    calls.an_unknown_computer_and_one_of_another_office_get_the_same_404,
    calls.two_offices_may_use_the_same_computer_name,
    socketio_computers.an_agent_calls_a_socketio_computer_of_another_gateway,
    socketio_computers.an_agent_calls_a_socketio_computer_of_its_own_gateway,
]
BY_ITSELF: list[Callable[[World], Awaitable[None]]] = [
    rooms.members_on_different_gateways_get_each_enter_and_leave_once,
    rooms.a_native_computer_is_notified_and_listed_like_any_other,
    rooms.another_office_gets_no_notification,
    rooms.a_second_agent_is_refused_whichever_gateway_it_uses,
    rooms.one_of_twenty_simultaneous_agents_gets_the_office,
    rooms.one_of_twenty_simultaneous_computers_gets_the_name,
    context.an_agent_goes_from_the_desktop_to_an_element_of_a_document_and_hears_of_changes,
    credentials.a_computers_credential_cannot_read_other_subjects,
    credentials.a_computers_credential_cannot_send_for_others,
    credentials.an_intruder_does_not_disturb_other_members,
    leftovers.timed_out_calls_leave_nothing_behind_in_any_process,
    credentials.a_reply_address_cannot_make_a_service_publish_elsewhere,
]


@pytest.fixture(scope="module", params=kinds(STANDALONE, PROCESSES, CONTAINERS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One world for all scenarios that do not hurt it; its parts are processes, so they outlive a test's loop."""
    opened = OPEN[request.param](tmp_path_factory.mktemp(request.param), more=[context.STUDY])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.parametrize("open_agent", AGENTS.values(), ids=AGENTS.keys())
@pytest.mark.parametrize("scenario", WITH_AN_AGENT, ids=lambda scenario: scenario.__name__)
async def test_calls_by_each_agent(
    world: World, scenario: Callable[[World, OpenAgent], Awaitable[None]], open_agent: OpenAgent
) -> None:
    with world.telling():
        await scenario(world, open_agent)


async def test_metrics_of_each_process(world: World) -> None:
    scenario = metrics.each_process_serves_the_documented_metrics
    with world.telling():
        await (scenario if world.spread else metrics.one_process_serves_the_metrics_of_its_gateway)(world)


@pytest.mark.parametrize("scenario", BY_ITSELF, ids=lambda scenario: scenario.__name__)
async def test_rooms_documents_and_permissions(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)
