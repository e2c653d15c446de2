"""NATS goes and comes back: calls fail at once, all members are back, and the difference is announced."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.headers import ERROR
from smcp_proto.schemas.resources import MISSED
from smcp_testing.gateway_world import SHORT_LEASE_S, connected, gateway_world, reply
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.nats_process import NatsServer
from smcp_testing.tcp_proxy import open_line
from smcp_testing.waiting import Stopwatch, eventually

OFFICE = "office"
TOOLS = {"agent": "anna", "req_id": "1", "computer": "box"}
CALL = TOOLS | {"tool_name": "t", "params": {}, "timeout": 60}


@pytest.mark.rule("answers.rooms.repair", "answers.resources.outage")
async def test_a_restart_of_nats_fails_calls_and_repairs_the_offices(nats_server: NatsServer) -> None:
    hang = asyncio.Event()

    async def serve(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await hang.wait()
        return reply({"verb": verb, "unknown": []})

    async with (
        gateway_world(nats_server.url, gateways=2, lease_s=SHORT_LEASE_S) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as car,
        world.computer(OFFICE, "box", serve),
    ):
        await anna.join("agent", "anna", OFFICE)
        can = {"resources": {"subscribe": True}, "counted": 2**70}
        join = {"role": "computer", "name": "car", "office_id": OFFICE, "capabilities": can}
        assert await car.call("server:join_office", join) == [True, None]
        await eventually(lambda: len(anna.events) == 1)
        waiting = asyncio.create_task(anna.call("client:tool_call", CALL))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        loop = asyncio.get_running_loop()

        await nats_server.stop()
        watch = Stopwatch()
        answer = await waiting
        assert watch.undisturbed < 5
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True}
        answer = await anna.call("client:get_tools", TOOLS)
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": False, "cut_off": True}
        assert watch.undisturbed < 10
        down_for = loop.time()
        await eventually(lambda: loop.time() - down_for > 1.5 * SHORT_LEASE_S)
        await nats_server.start()

        async def answered() -> bool:
            answer: dict[str, Any] = await anna.call("client:get_tools", TOOLS)
            return answer.get("verb") == "get_tools"

        await eventually(answered)

        async def complete() -> bool:
            listed = await anna.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": OFFICE})
            return {session["name"] for session in listed.get("sessions", [])} == {"anna", "box", "car"}

        await eventually(complete)
        await eventually(lambda: len(anna.told("notify:update_tool_list")) >= 2)
        await eventually(lambda: car.told("notify:update_config"))
        await eventually(lambda: anna.told("notify:update_capabilities"))
        assert len(anna.told("notify:enter_office")) == 1
        assert anna.told("notify:leave_office") == []
        assert car.told("notify:enter_office") == []
        assert car.told("notify:leave_office") == []
        for update in ("config", "tool_list", "desktop", "finder"):
            assert {payload["computer"] for payload in anna.told(f"notify:update_{update}")} == {"box", "car"}
        for payload in anna.told("notify:resources/list_changed"):
            assert payload["payload"] == {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
            assert payload[MISSED] is True
        changed = {(payload["roomId"], payload["computerId"]) for payload in anna.told("notify:resources/list_changed")}
        assert changed == {(OFFICE, "box"), (OFFICE, "car")}
        assert car.told("notify:resources/list_changed") == []
        assert anna.told("notify:update_capabilities")[-1] == {"computer": "car", "capabilities": can}
        assert {payload["computer"] for payload in car.told("notify:update_config")} == {"box"}
        hang.set()


@pytest.mark.rule("answers.rooms.admission.no-quorum", "answers.rooms.repair")
async def test_a_leave_during_an_outage_is_passed_on_once(nats_server: NatsServer) -> None:
    async with (
        gateway_world(nats_server.url, gateways=2) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        async with connected(world.gateways[1].url) as car:
            await car.join("computer", "car", OFFICE)
            await eventually(lambda: len(anna.told("notify:enter_office")) == 1)
            await nats_server.stop()
            await eventually(lambda: not world.buses[1].connected)
        done, why, *_ = await box.join("computer", "box", OFFICE)
        assert done is False
        assert why
        await nats_server.start()
        await eventually(lambda: anna.told("notify:leave_office"))

        async def joined() -> bool:
            return (await box.join("computer", "box", OFFICE))[0] is True

        await eventually(joined)
        await eventually(lambda: len(anna.told("notify:enter_office")) == 2)
        assert anna.told("notify:leave_office") == [{"office_id": OFFICE, "computer": "car"}]
        assert anna.told("notify:enter_office")[1] == {"office_id": OFFICE, "computer": "box"}
        assert not [name for name, _ in box.events if "office" in name]


async def test_an_outage_right_after_a_join_is_repaired(nats_server: NatsServer) -> None:
    port = int(nats_server.url.rpartition(":")[2])
    async with (
        gateway_world(nats_server.url) as world,
        open_line(port) as line,
        gateway_world(line.url.replace("http", "nats"), registry=False) as far,
        connected(far.url) as anna,
        connected(world.url) as box,
        connected(world.url) as car,
    ):
        assert await box.join("computer", "box", OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        line.port = 1  # nobody is there
        line.cut()
        await eventually(lambda: not far.buses[0].connected)
        assert await box.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert await car.join("computer", "car", OFFICE) == [True, None]
        line.port = port
        await eventually(lambda: len(anna.events) >= 2)
        assert anna.events == [
            ("notify:leave_office", {"office_id": OFFICE, "computer": "box"}),
            ("notify:enter_office", {"office_id": OFFICE, "computer": "car"}),
        ]


async def test_a_join_fails_where_the_gateway_gets_no_list(nats_url: str) -> None:
    buses, silent = InterposedBuses(), True

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        if silent and subjects.verb_of(incoming.subject) == "list_room":
            return Reply(b'{"code":503,"message":"not now","details":{}}', {ERROR: "503"})
        return await handler(incoming)

    buses.between = between
    async with gateway_world(nats_url, gateways=2, bad=buses) as world, connected(world.url) as box:
        done, why, *_ = await box.join("computer", "box", OFFICE)
        assert (done, why.split()[0]) == (False, "503")
        silent = False
        assert await box.join("computer", "box", OFFICE) == [True, None]
        silent = True
        async with connected(world.gateways[1].url) as car:
            assert await car.join("computer", "car", "elsewhere") != [True, None]
            done, *_ = await box.join("computer", "box", "elsewhere")
            assert done is False
            assert await box.call("server:update_config", {"computer": "box"}) is None  # where it was
            silent = False
            listed = await box.call("server:list_room", {"agent": "box", "req_id": "1", "office_id": OFFICE})
            assert [session["name"] for session in listed["sessions"]] == ["box"]
            assert await car.join("computer", "car", OFFICE) == [True, None]
            assert await box.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
            await eventually(lambda: car.told("notify:leave_office") == [{"office_id": OFFICE, "computer": "box"}])


async def test_a_join_is_taken_back_when_the_list_of_its_office_cannot_be_had(nats_url: str) -> None:
    buses, silent = InterposedBuses(), False

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        if silent and subjects.verb_of(incoming.subject) == "list_room":
            return Reply(b'{"code":503,"message":"not now","details":{"may_have_run":false}}', {ERROR: "503"})
        return await handler(incoming)

    buses.between = between
    async with (
        gateway_world(nats_url, gateways=2, bad=buses, settings={"lease_s": SHORT_LEASE_S}) as world,
        connected(world.gateways[1].url) as car,
        connected(world.url) as box,
    ):
        assert await car.join("computer", "car", OFFICE) == [True, None]
        silent = True
        done, why, *_ = await box.join("computer", "box", OFFICE)
        assert (done, why.split()[0]) == (False, "503")
        await eventually(lambda: car.told("notify:leave_office") == [{"office_id": OFFICE, "computer": "box"}])
        assert len(car.told("notify:enter_office")) == 1


async def test_concurrent_joins_wait_only_once_for_a_missing_list(nats_url: str) -> None:
    buses, over = InterposedBuses(), asyncio.Event()

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        if subjects.verb_of(incoming.subject) == "list_room":
            await over.wait()
        return await handler(incoming)

    buses.between = between
    async with gateway_world(nats_url, bad=buses, lease_s=3.0) as world, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(world.url)) for _ in range(20)]
        stack.callback(over.set)
        joins = (client.join("computer", f"box {number}", OFFICE) for number, client in enumerate(clients))
        answers = await asyncio.gather(*joins)  # one after the other they would take a minute; each has ten seconds
        assert [(done, why.split()[0]) for done, why, *_ in answers] == [(False, "503")] * len(clients)
        over.set()
        assert await clients[0].join("computer", "box 0", OFFICE) == [True, None]
