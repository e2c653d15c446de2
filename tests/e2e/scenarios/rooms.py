"""Admission to an office, its list, and its notifications."""

import asyncio
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from smcp_testing.waiting import eventually
from tests.e2e.actors.agents import lists
from tests.e2e.actors.bare import BareMember, Refused, member
from tests.e2e.worlds.world import ELSEWHERE, LAB, World

ENTER, LEAVE = "notify:enter_office", "notify:leave_office"


async def members_on_different_gateways_get_each_enter_and_leave_once(world: World) -> None:
    watcher_office = f"watched {uuid4().hex}"
    async with member(world.url(0), "agent", watcher_office, "watcher") as watcher:
        async with member(world.url(1), "computer", watcher_office, "early") as early:
            await watcher.told(ENTER, computer="early")
            async with member(world.url(0), "computer", watcher_office, "late") as late:
                for observer in (watcher, early):
                    await observer.told(ENTER, computer="late", office_id=watcher_office)
                await late.leave()
                for observer in (watcher, early):
                    await observer.told(LEAVE, computer="late", office_id=watcher_office)
        await watcher.told(LEAVE, computer="early")
        # Announcements come in the order of the log: after this one nothing of the earlier ones can follow.
        async with member(world.url(1), "computer", watcher_office, "last"):
            await watcher.told(ENTER, computer="last")
            assert watcher.comings_and_goings("early") == ["enter", "leave"]
            assert watcher.comings_and_goings("late") == ["enter", "leave"]
            assert watcher.comings_and_goings("watcher") == []
            assert early.comings_and_goings("late") == ["enter", "leave"]
            assert early.comings_and_goings("watcher") == []
            assert early.comings_and_goings("early") == []
            assert late.comings_and_goings("early") == []


@pytest.mark.rule("events.list_room.all")
async def a_native_computer_is_notified_and_listed_like_any_other(world: World) -> None:
    async with member(world.url(1), "agent", LAB, "watcher") as watcher:
        await lists(watcher, ("agent", "watcher"), ("computer", "alpha"), ("computer", "beta"))


@pytest.mark.rule("events.classes.notify.broadcast")
async def another_office_gets_no_notification(world: World) -> None:
    async with (
        member(world.url(0), "agent", LAB, "watcher") as here,
        member(world.url(0), "agent", ELSEWHERE, "watcher") as there,
    ):
        async with member(world.url(1), "computer", LAB, "visitor"):
            await here.told(ENTER, computer="visitor")
        await here.told(LEAVE, computer="visitor")
        async with member(world.url(1), "computer", ELSEWHERE, "last"):
            await there.told(ENTER, computer="last")
        assert there.comings_and_goings("visitor") == []
        assert here.comings_and_goings("last") == []


@pytest.mark.rule("events.join_office.agent.only-one")
async def a_second_agent_is_refused_whichever_gateway_it_uses(world: World) -> None:
    office = f"taken {uuid4().hex}"
    async with member(world.url(0), "agent", office, "first") as first:
        for number in range(2):
            second = BareMember("agent", office, f"second {number}")
            await second.connect(world.url(number))
            with pytest.raises(Refused):
                await second.join()
            await second.close()
        assert await first.room() == {("agent", "first")}
        assert first.notices == []
    # The place is free as soon as the first has gone.
    second = BareMember("agent", office, "second")
    await second.connect(world.url(1))
    try:
        await eventually(lambda: _joins(second))
    finally:
        await second.close()


@pytest.mark.rule("answers.rooms.one-agent", "answers.rooms.refused.hears-nothing")
async def one_of_twenty_simultaneous_agents_gets_the_office(world: World) -> None:
    office = f"wanted {uuid4().hex}"
    async with AsyncExitStack() as stack:
        agents = [BareMember("agent", office, f"agent {number}") for number in range(20)]
        for number, agent in enumerate(agents):
            await agent.connect(world.url(number))
            stack.push_async_callback(agent.close)
        together = asyncio.Barrier(len(agents))

        async def joins(agent: BareMember) -> bool:
            await together.wait()
            return await _joins(agent)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(joins(agent)) for agent in agents]
        winners = [agent for agent, task in zip(agents, tasks, strict=True) if task.result()]
        assert len(winners) == 1
        assert await winners[0].room() == {("agent", winners[0].name)}
        assert all(agent.notices == [] for agent in agents)


@pytest.mark.rule("answers.rooms.computer-names")
async def one_of_twenty_simultaneous_computers_gets_the_name(world: World) -> None:
    office = f"wanted {uuid4().hex}"
    async with AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(member(world.url(0), "agent", office, "watcher"))
        computers = [BareMember("computer", office, "the one") for _ in range(20)]
        for number, computer in enumerate(computers):
            await computer.connect(world.url(number))
            stack.push_async_callback(computer.close)
        results = await asyncio.gather(*(_joins(computer) for computer in computers))
        assert results.count(True) == 1
        await stack.enter_async_context(member(world.url(1), "computer", office, "last"))
        await watcher.told(ENTER, computer="last")
        assert watcher.comings_and_goings("the one") == ["enter"]


async def _joins(member: BareMember) -> bool:
    try:
        await member.join()
    except Refused:
        return False
    return True
