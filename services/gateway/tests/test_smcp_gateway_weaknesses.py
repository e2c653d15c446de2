"""What the published server is known to get wrong, each tried here.

1. A refused join stays in the room and listens in.
2. Joining again under a room mate's name takes it away.
3. A forged `leave_office` reaches a foreign office.
4. Names are unique over all offices.
5. Refusals are never acknowledged.
6. Time-outs leave callbacks behind for ever.
7. 500 joins into one office take 6 s and 100 MB (`bench.rooms` measures both, side by side).
"""

import asyncio
import time
from typing import Any, Final

import psutil
import pytest

from bench.members import Room
from smcp_bus.bus import Incoming, Reply
from smcp_testing.event_payloads import GOOD
from smcp_testing.gateway_world import NAMESPACE, Client, connected, gateway_world, reply
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually

PUBLISHED_S: Final = 6.0
PUBLISHED_BYTES: Final = 100_000_000
"""What 500 joins cost the published server."""

HERE, THERE = "office", "other"


async def names(client: Client, agent: str, office: str) -> list[str]:
    listed = await client.call("server:list_room", {"agent": agent, "req_id": "r", "office_id": office})
    return sorted(session["name"] for session in listed["sessions"])


@pytest.mark.rule("answers.rooms.refused.hears-nothing")
async def test_a_refused_client_gets_no_notifications_and_can_do_nothing_in_the_room(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        connected(world.url) as spy,
        connected(world.url) as namesake,
    ):
        await anna.join("agent", "anna", HERE)
        await box.join("computer", "box", HERE)
        assert (await spy.join("agent", "spy", HERE))[0] is False
        assert (await namesake.join("computer", "box", HERE))[0] is False
        for verb in ("update_config", "update_tool_list", "update_desktop"):
            assert await box.call(f"server:{verb}", {"computer": "box"}) is None
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r"}) is None
        await eventually(lambda: len(anna.events) == 4 and len(box.events) == 1)
        for refused, me in ((spy, "spy"), (namesake, "box")):
            assert refused.events == []
            listed = await refused.call("server:list_room", {"agent": me, "req_id": "r", "office_id": HERE})
            assert listed["code"] == 4103
        assert (await spy.call("client:get_tools", {"agent": "spy", "req_id": "r", "computer": "box"}))["code"] == 4103
        assert (await namesake.call("server:update_config", {"computer": "box"}))["code"] == 4103
        assert await names(anna, "anna", HERE) == ["anna", "box"]


async def test_joining_under_the_name_of_another_member_changes_nothing(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        connected(world.url) as thief,
    ):

        async def answer(_: Any) -> dict[str, str]:
            return {"from": "box"}

        box.sio.on("client:get_skills", answer, namespace=NAMESPACE)
        await anna.join("agent", "anna", HERE)
        await box.join("computer", "box", HERE)
        await thief.join("computer", "thief", HERE)
        assert (await thief.join("computer", "box", HERE))[0] is False
        assert await anna.call("client:get_skills", {"agent": "anna", "computer": "box"}) == {"from": "box"}
        await eventually(lambda: len(anna.told("notify:enter_office")) == 2)
        assert await names(anna, "anna", HERE) == ["anna", "box", "thief"]
        assert (await thief.call("server:update_config", {"computer": "box"}))["code"] == 403
        assert await box.call("server:update_config", {"computer": "box"}) is None
        await eventually(lambda: anna.told("notify:update_config") == [{"computer": "box"}])
        assert anna.told("notify:leave_office") == []


async def test_a_forged_leave_has_no_effect(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        connected(world.url) as forger,
        connected(world.url) as stranger,
    ):
        await anna.join("agent", "anna", THERE)
        await box.join("computer", "box", THERE)
        await forger.join("computer", "box", HERE)
        await eventually(lambda: anna.told("notify:enter_office"))
        for client in (forger, stranger):
            for more in ({}, {"name": "box", "role": "computer"}, {"agent": "anna"}, {"computer": "box"}):
                done, why, *_ = await client.call("server:leave_office", {"office_id": THERE, **more})
                assert done is False
                assert why
        assert await box.call("server:update_config", {"computer": "box"}) is None
        await eventually(lambda: anna.told("notify:update_config"))
        assert anna.told("notify:leave_office") == box.told("notify:leave_office") == []
        assert await names(anna, "anna", THERE) == ["anna", "box"]


async def test_a_name_is_taken_only_in_its_own_office(nats_url: str) -> None:
    async with gateway_world(nats_url) as world:
        offices = [f"office-{number}" for number in range(4)]
        clients = [connected(world.url) for _ in range(8)]
        opened = await asyncio.gather(*(client.__aenter__() for client in clients))
        for agent, computer, office in zip(opened[::2], opened[1::2], offices, strict=True):
            assert await agent.join("agent", "same", office) == [True, None]
            assert await computer.join("computer", "same", office) == [True, None], "an Agent's name is another's"
        await eventually(lambda: all(agent.told("notify:enter_office") for agent in opened[::2]))
        for agent, office in zip(opened[::2], offices, strict=True):
            assert await names(agent, "same", office) == ["same", "same"]
        await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))


async def test_every_refusal_is_acknowledged(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        connected(world.url) as second,
        connected(world.url) as stranger,
    ):
        await anna.join("agent", "anna", HERE)
        done, why, *_ = await second.join("agent", "second", HERE)
        assert done is False
        assert why
        for event, payload in GOOD.items():
            for client in (anna, stranger):
                wrong: dict[str, Any] = {"req_id": 7, "office_id": THERE}
                if event.startswith("notify:"):
                    wrong = {"computerId": 7}
                if event == "server:join_office":
                    wrong = {"name": "another"} if client is anna else {"role": "robot"}
                answer = await client.call(event, payload | wrong | {"computer": 7, "computerId": 7, "agent": "nobody"})
                if event in {"server:join_office", "server:leave_office"}:
                    assert answer[0] is False
                    assert answer[1]
                else:
                    assert set(answer) == {"code", "message", "details"}, event
        for event in ("no:such", "client:", "server:jump", "notify:nothing"):
            assert (await stranger.call(event, {}))["code"] == 400


async def test_calls_that_timed_out_leave_no_callback_behind(nats_url: str) -> None:
    never = asyncio.Event()

    async def hang(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await never.wait()
        return reply({"unknown": []})

    async with (
        gateway_world(nats_url) as world,
        world.computer(HERE, "native", hang),
        connected(world.url) as anna,
        connected(world.url) as silent,
    ):

        async def unanswered(*_: Any) -> None:
            await never.wait()

        silent.sio.on("client:tool_call", unanswered, namespace=NAMESPACE)
        await silent.join("computer", "silent", HERE)
        await anna.join("agent", "anna", HERE)
        gateway = world.gateways[0]
        call = GOOD["client:tool_call"]
        asked = [
            anna.call("client:tool_call", call | {"computer": computer, "req_id": f"{computer}-{number}", "timeout": 1})
            for computer in ("native", "silent")
            for number in range(50)
        ]
        answers = await asyncio.gather(*asked)
        assert {answer.get("code") for answer in answers[:50]} == {408}
        assert all(answer.get("code") == 408 or answer["meta"] == {"a2c_timeout": True} for answer in answers[50:])
        assert len(gateway.calls) == 0
        await eventually(lambda: gateway.computers.running == 0)
        assert [len(session.asks) for session in gateway.sessions] == [0, 0]
        never.set()
        await eventually(lambda: world.buses[0].stats().pending == 0)


async def test_hundreds_of_joins_into_one_office_take_neither_seconds_nor_a_hundred_megabytes(nats_url: str) -> None:
    joins, process = scaled(ci=100, soak=500), psutil.Process()
    # servers and clients share this process, so all of them count; CPU, since others may use the machine, too
    async with gateway_world(nats_url, lease_s=60) as world:
        room = Room(world.url, joins)
        try:
            await room.connect()
            bytes_before, cpu_before = process.memory_info().rss, time.process_time()
            await room.join(at_once=True)  # all are in the list, and received the enters of all who came later
            assert time.process_time() - cpu_before < PUBLISHED_S * joins / 500
            assert process.memory_info().rss - bytes_before < PUBLISHED_BYTES * joins / 500
        finally:
            await room.close()
