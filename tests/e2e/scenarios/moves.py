"""A gateway stops with calls in flight: its members move to another one, and no call fails."""

import asyncio
import time
from uuid import uuid4

import pytest

from smcp_agent import SmcpAgent
from smcp_testing.waiting import eventually
from tests.e2e.actors.agents import SdkAgent
from tests.e2e.actors.bare import FlatError, member
from tests.e2e.actors.crowd import BACK_S, ENTER
from tests.e2e.actors.flights import Flight, in_flight
from tests.e2e.actors.socketio_computer import roaming_computer
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.world import LAB, World

DRAIN_S = 8.0
"""What gateways are given: long enough for what ends by itself, and over before a call that does not."""


@pytest.mark.rule("answers.rooms.moving.drain")
async def a_stopping_gateway_loses_no_call_and_its_members_do_not_leave(world: World) -> None:
    leaving, urls = world.gateway(0), [world.url(0), world.url(1)]
    alpha = world.computer(LAB, "alpha")
    flights: list[Flight] = []
    async with (
        member(world.url(1), "computer", LAB, "watcher") as watcher,
        roaming_computer(urls, LAB, "box") as box,
        SmcpAgent(urls, office=LAB, name="caller") as sdk,
    ):
        agent = SdkAgent(sdk)
        await watcher.told(ENTER, computer="box")
        await watcher.told(ENTER, agent="caller")
        seen = len(watcher.notices)
        async with in_flight(agent, alpha, flights, seconds=3) as native:
            boxed = asyncio.create_task(agent.call("box", "sleep", {"seconds": 2}))
            await eventually(lambda: len(box.ran) == 1)
            stopping = asyncio.create_task(leaving.part.stop())
            echoed = 0
            async with asyncio.timeout(DRAIN_S + BACK_S):
                while not stopping.done():  # calls continue, through any gateway
                    echoed += 1
                    for name in ("alpha", "box"):
                        assert text(await agent.call(name, "echo", {"text": str(echoed)}, timeout=20)) == str(echoed)
            assert text(await native) == "slept 3.0"
            assert text(await boxed) == "slept 2"
            assert await stopping == 0
        assert box.joins == 2
        assert sdk.connected
        assert text(await agent.call("box", "echo", {"text": "by the other one"})) == "by the other one"
        assert len(box.ran) == len(set(box.ran)) == echoed + 2
        await leaving.part.start()
        # Announcements come in the order of the log: after this one nothing of the earlier ones can follow.
        async with member(world.url(0), "computer", LAB, "last"):
            await watcher.told(ENTER, timeout=BACK_S, computer="last")
            told = [notice for notice in watcher.notices[seen:] if notice[0].startswith("notify:")]
            assert told == [(ENTER, {"office_id": LAB, "computer": "last"})], told
    assert [flight.runs() for flight in flights] == [1]


@pytest.mark.rule("answers.rooms.moving.deadline")
async def a_call_longer_than_the_drain_gets_503_with_may_have_run(world: World) -> None:
    leaving = world.gateway(0)
    mark = uuid4().hex
    async with member(world.url(0), "agent", LAB, "caller") as agent:
        alpha = world.computer(LAB, "alpha")
        longer = {"seconds": 3 * DRAIN_S, "mark": mark}
        call = asyncio.create_task(agent.call("alpha", "sleep", longer, timeout=60))
        await eventually(lambda: alpha.ran.exists() and mark in alpha.ran.read_text(encoding="utf-8"))
        began = time.monotonic()
        stopping = asyncio.create_task(leaving.part.stop())
        with pytest.raises(FlatError) as cut_off:
            await asyncio.wait_for(call, DRAIN_S + BACK_S)
        assert (cut_off.value.code, cut_off.value.details.get("may_have_run")) == (503, True)
        assert time.monotonic() - began > DRAIN_S / 2
        assert await asyncio.wait_for(stopping, DRAIN_S + BACK_S) == 0
        await leaving.part.start()
