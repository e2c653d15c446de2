"""Computers that speak Socket.IO only: called from any gateway, and seen like native ones."""

import asyncio
from uuid import uuid4

import orjson
import pytest
from nats.aio.msg import Msg

from smcp_bus import subjects
from smcp_testing.nats_peer import nats_peer
from smcp_testing.waiting import OWNER_FIRST_S, eventually
from tests.e2e.actors.agents import OpenAgent
from tests.e2e.actors.bare import FlatError, Notice, comings_and_goings, member
from tests.e2e.actors.socketio_computer import socketio_computer
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.layout import BETA
from tests.e2e.worlds.world import LAB, World

ENTER, LEAVE = "notify:enter_office", "notify:leave_office"
SLEEP_S = 1.0


@pytest.mark.rule("answers.calls.socketio-computer")
async def an_agent_calls_a_socketio_computer_of_another_gateway(world: World, open_agent: OpenAgent) -> None:
    await _an_agent_calls_a_socketio_computer(world, open_agent, gateway=1)


async def an_agent_calls_a_socketio_computer_of_its_own_gateway(world: World, open_agent: OpenAgent) -> None:
    await _an_agent_calls_a_socketio_computer(world, open_agent, gateway=0)


async def _an_agent_calls_a_socketio_computer(world: World, open_agent: OpenAgent, *, gateway: int) -> None:
    name = f"盒子 {uuid4().hex}"
    async with open_agent(world.url(0), LAB, "caller") as agent:

        async def listed() -> bool:
            return {("computer", name), ("computer", "alpha")} <= await agent.room()

        async with socketio_computer(world.url(gateway), LAB, name) as computer:
            # The registry that is asked may be behind the one that let the other in.
            await eventually(listed)
            assert await agent.tools(name) == {"echo", "sleep"}
            slow = asyncio.create_task(agent.call(name, "sleep", {"seconds": SLEEP_S}))
            said = [f"你好 {number}" for number in range(20)]
            answers = await asyncio.gather(*(agent.call(name, "echo", {"text": each}) for each in said))
            assert [text(answer) for answer in answers] == said
            assert text(await slow) == f"slept {SLEEP_S}"
            assert text(await agent.call("alpha", "echo", {"text": "native"})) == "native"
            late = await agent.call(name, "sleep", {"seconds": 60}, timeout=OWNER_FIRST_S)
            assert late["meta"] == {"a2c_timeout": True}
            assert len(computer.ran) == len(set(computer.ran)) == 22
            broken_off = asyncio.create_task(agent.call(name, "sleep", {"seconds": 60}, timeout=60))
            await eventually(lambda: len(computer.ran) == 23)
        with pytest.raises(FlatError) as gone:
            await broken_off
        assert (gone.value.code, gone.value.details.get("may_have_run")) == (503, True)

        async def left() -> bool:
            return ("computer", name) not in await agent.room()

        await eventually(left)
        with pytest.raises(FlatError) as unknown:
            await agent.call(name, "echo", {"text": "nobody hears"})
        assert unknown.value.code == 404


async def native_and_socketio_computers_get_each_enter_and_leave_once(world: World) -> None:
    native = world.computer(LAB, "beta")
    heard: list[Notice] = []  # the notifications to the host of a native Computer

    async def hear(message: Msg) -> None:
        heard.append((f"notify:{subjects.verb_of(message.subject)}", orjson.loads(message.data)))

    async with (
        nats_peer(world.nats_url, world.credentials / f"{BETA.credential}.json") as host,
        member(world.url(0), "agent", LAB, "watcher") as watcher,
        socketio_computer(world.url(1), LAB, "neighbour") as neighbour,
    ):
        await watcher.told(ENTER, computer="neighbour")
        await host.client.subscribe(subjects.notify_all(LAB), cb=hear)
        await host.flushed()
        async with socketio_computer(world.url(0), LAB, "visitor"):
            await neighbour.told(ENTER, computer="visitor")
        await neighbour.told(LEAVE, computer="visitor")
        assert await native.part.stop() == 0
        for observer in (watcher, neighbour):
            await observer.told(LEAVE, computer="beta")
        await native.part.start()
        for observer in (watcher, neighbour):
            await observer.told(ENTER, computer="beta")
        # Announcements come in the order of the log: after this one nothing of the earlier ones can follow.
        async with socketio_computer(world.url(1), LAB, "last"):
            for observer in (watcher, neighbour):
                await observer.told(ENTER, computer="last")
            await eventually(lambda: comings_and_goings(heard, "last") == ["enter"])
            for notices in (watcher.notices, neighbour.notices, heard):
                assert comings_and_goings(notices, "visitor") == ["enter", "leave"]
                assert comings_and_goings(notices, "beta") == ["leave", "enter"]
            assert neighbour.comings_and_goings("neighbour") == []
            assert await neighbour.room() >= {("computer", each) for each in ("alpha", "beta", "neighbour", "last")}
