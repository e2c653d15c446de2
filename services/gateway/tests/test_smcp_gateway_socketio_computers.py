"""Computers on Socket.IO: an Agent on any replica cannot tell one from a native one."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_testing.gateway_world import MIB, NAMESPACE, SHORT_LEASE_S, Client, World, connected, gateway_world, reply
from smcp_testing.nats_process import NatsServer
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

OFFICE = "办公室 1"
BOX = "盒子.*"

Answer = Callable[[dict[str, Any]], Awaitable[Any]]
RESULT: dict[str, Any] = {"content": [{"type": "text", "text": "done"}], "isError": False}


def call(number: int = 0, *, timeout: int = 5, **params: Any) -> dict[str, Any]:
    return {
        "agent": "anna", "req_id": f"r{number}", "computer": BOX, "tool_name": "t", "params": params,
        "timeout": timeout,
    }  # fmt: skip


def query(computer: str = BOX) -> dict[str, Any]:
    return {"agent": "anna", "req_id": "q", "computer": computer}


def serve(computer: Client, event: str, answer: Answer) -> list[dict[str, Any]]:
    """Let a client answer an event; returns what it was asked."""
    asked: list[dict[str, Any]] = []

    async def handle(payload: dict[str, Any]) -> Any:
        asked.append(payload)
        return await answer(payload)

    computer.sio.on(event, handle, namespace=NAMESPACE)
    return asked


async def echo(payload: dict[str, Any]) -> dict[str, Any]:
    return {"content": [], "isError": False, "echo": payload}


def hang(computer: Client) -> Answer:
    """Never answers; ends with the connection."""

    async def answer(_: dict[str, Any]) -> Any:
        await computer.gone.wait()

    return answer


def running(world: World) -> int:
    return sum(gateway.computers.running for gateway in world.gateways)


@asynccontextmanager
async def couple(nats_url: str, **options: Any) -> AsyncIterator[tuple[World, Client, Client]]:
    """Two gateways; the Agent is on the first, its Computer on the second."""
    async with (
        gateway_world(nats_url, gateways=2, **options) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as box,
    ):
        assert await box.join("computer", BOX, OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        yield world, anna, box


async def test_a_call_goes_to_the_computer_unchanged_and_its_result_comes_back_unchanged(nats_url: str) -> None:
    async with couple(nats_url) as (world, anna, box):
        result = RESULT | {"meta": {"x": 1.5}, "unknown": ["\u2028", 2**53], "structuredContent": None}

        async def tool(_: dict[str, Any]) -> Any:
            return result

        asked = serve(box, "client:tool_call", tool)
        payload = call(x={"深": [1.5, None]}) | {"unknown": [1]}
        assert await anna.call("client:tool_call", payload) == result
        assert asked == [payload]
        assert world.gateways[1].computers.running == 0


async def test_questions_and_unknown_events_are_relayed_under_their_own_names(nats_url: str) -> None:
    async with couple(nats_url) as (_, anna, box):
        envelope = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///x"}}
        for event, payload in (
            ("client:get_tools", query()),
            ("client:get_config", query()),
            ("client:get_desktop", query() | {"desktop_size": 3}),
            ("client:get_finder", query()),
            ("client:get_skills", {"computer": BOX, "x": [1]}),
            ("client:resources/read", {"roomId": OFFICE, "computerId": BOX, "payload": envelope}),
        ):
            asked = serve(box, event, echo)
            assert (await anna.call(event, payload))["echo"] == payload
            assert asked == [payload]


@pytest.mark.parametrize(
    "error",
    [
        {"code": 404, "message": "no such tool"},
        {"code": 4014, "message": "MCP Server not registered", "mcp_server": "x"},
        {"code": 403, "message": "no", "details": {"field": "computer"}},
    ],
)
async def test_an_error_of_the_computer_passes_as_that_error(nats_url: str, error: dict[str, Any]) -> None:
    async with couple(nats_url) as (_, anna, box):

        async def refuse(_: dict[str, Any]) -> Any:
            return error

        serve(box, "client:tool_call", refuse)
        serve(box, "client:get_resources", refuse)
        assert await anna.call("client:tool_call", call()) == error
        assert await anna.call("client:get_resources", query()) == error


@pytest.mark.parametrize("answer", [None, "text", 17, [RESULT], (RESULT, RESULT), True, (), b"bytes"])
async def test_an_answer_that_is_no_object_is_500_and_both_sockets_stay(nats_url: str, answer: Any) -> None:
    async with couple(nats_url) as (_, anna, box):

        async def odd(_: dict[str, Any]) -> Any:
            return answer

        serve(box, "client:tool_call", odd)
        serve(box, "client:get_tools", odd)
        serve(box, "client:get_config", echo)
        for event, payload in (("client:tool_call", call()), ("client:get_tools", query())):
            refused = await anna.call(event, payload)
            assert refused["code"] == 500
            assert "JSON" in refused["message"]
        assert (await anna.call("client:get_config", query()))["echo"]


async def test_a_hundred_calls_run_side_by_side_and_each_gets_its_own_result(nats_url: str) -> None:
    async with couple(nats_url) as (_, anna, box):
        gathered = asyncio.Event()

        async def tool(payload: dict[str, Any]) -> Any:
            if len(asked) == 100:
                gathered.set()
            await gathered.wait()
            return RESULT | {"n": payload["params"]["n"]}

        asked = serve(box, "client:tool_call", tool)
        answers = await asyncio.gather(*(anna.call("client:tool_call", call(n, n=n)) for n in range(100)))
        assert [answer["n"] for answer in answers] == list(range(100))


async def test_a_tool_that_takes_too_long_is_answered_by_its_owner_and_told_to_the_computer(nats_url: str) -> None:
    async with couple(nats_url) as (_, anna, box):
        serve(box, "client:tool_call", hang(box))
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await anna.call("client:tool_call", call(timeout=1))
        assert loop.time() - began > 0.85
        assert answer["isError"] is True
        assert answer["meta"] == {"a2c_timeout": True}
        await eventually(lambda: box.told("notify:tool_call_cancel") == [{"agent": "anna", "req_id": "r0"}])


async def test_nothing_is_left_of_three_hundred_calls_that_timed_out(nats_url: str) -> None:
    async with couple(nats_url) as (world, anna, box):
        released = asyncio.Event()

        async def slow(_: dict[str, Any]) -> Any:
            await released.wait()
            return RESULT

        serve(box, "client:tool_call", slow)
        answers = await asyncio.gather(*(anna.call("client:tool_call", call(n, timeout=1)) for n in range(300)))
        # 100 ms before the Agent's own gateway gives up: on a busy machine some are 408
        assert all(answer.get("code") == 408 or answer["meta"] == {"a2c_timeout": True} for answer in answers)
        released.set()  # the answers come late, and to nobody
        gateway = world.gateways[1]
        session = next(iter(gateway.sessions))
        await eventually(lambda: running(world) == 0 and len(session.asks) == 0)
        await eventually(lambda: all(bus.stats().pending == bus.stats().running == 0 for bus in world.buses))
        assert len(world.gateways[0].calls) == 0
        serve(box, "client:get_tools", echo)
        assert (await anna.call("client:get_tools", query()))["echo"]


async def test_a_computer_that_disconnects_in_the_middle_is_503_at_once(nats_url: str) -> None:
    async with couple(nats_url) as (world, anna, box):
        serve(box, "client:tool_call", hang(box))
        serve(box, "client:get_tools", hang(box))
        waiting = [
            asyncio.create_task(anna.call("client:tool_call", call(timeout=60))),
            asyncio.create_task(anna.call("client:get_tools", query())),
        ]
        session = next(iter(world.gateways[1].sessions))
        await eventually(lambda: len(session.asks) == 2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await box.sio.disconnect()
        for answer in await asyncio.gather(*waiting):
            assert answer["code"] == 503
            assert answer["details"] == {"may_have_run": True}
        assert loop.time() - began < 5
        await eventually(lambda: anna.told("notify:leave_office") == [{"office_id": OFFICE, "computer": BOX}])
        assert (await anna.call("client:get_tools", query()))["code"] == 404
        assert running(world) == 0
        assert len(session.asks) == 0


async def test_a_computer_that_leaves_or_switches_in_the_middle_ends_its_calls(nats_url: str) -> None:
    async with couple(nats_url) as (_, anna, box):
        asked = serve(box, "client:tool_call", hang(box))
        waiting = asyncio.create_task(anna.call("client:tool_call", call(timeout=60)))
        await eventually(lambda: asked)
        assert await box.join("computer", BOX, "another") == [True, None]
        answer = await waiting
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True}
        assert (await anna.call("client:get_tools", query()))["code"] == 404
        assert await box.join("computer", BOX, OFFICE) == [True, None]
        serve(box, "client:tool_call", echo)
        assert (await anna.call("client:tool_call", call(1)))["echo"]


async def test_a_refused_switch_leaves_the_calls_alone_that_run(nats_url: str) -> None:
    async with couple(nats_url) as (world, anna, box), connected(world.url) as other:
        assert await other.join("computer", BOX, "another") == [True, None]
        go_on = asyncio.Event()

        async def answer(_: dict[str, Any]) -> Any:
            await go_on.wait()
            return RESULT

        asked = serve(box, "client:tool_call", answer)
        waiting = asyncio.create_task(anna.call("client:tool_call", call(timeout=60)))
        await eventually(lambda: asked)
        assert (await box.join("computer", BOX, "another"))[0] is False
        assert running(world) == 1
        go_on.set()
        assert await waiting == RESULT
        assert (await anna.call("client:tool_call", call(1)))["isError"] is False


async def test_a_cancel_reaches_the_computer_and_settles_the_call(nats_url: str) -> None:
    async with couple(nats_url) as (world, anna, box):
        asked = serve(box, "client:tool_call", hang(box))
        waiting = asyncio.create_task(anna.call("client:tool_call", call(3, timeout=60)))
        await eventually(lambda: asked)
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r3"}) is None
        answer = await waiting
        assert running(world) == 0, "its owner settled it, not the grace of a second"
        assert answer["isError"] is True
        assert answer["meta"] == {"a2c_cancelled": True}
        await eventually(lambda: box.told("notify:tool_call_cancel") == [{"agent": "anna", "req_id": "r3"}])
        assert running(world) == 0
        assert (await anna.call("client:tool_call", call(3, timeout=60)))["meta"] == {"a2c_cancelled": True}
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "never seen"}) is None
        answer = await anna.call("client:tool_call", call() | {"req_id": "never seen"})
        assert answer["meta"] == {"a2c_cancelled": True}
        assert len(asked) == 1


async def test_a_call_runs_once_however_often_it_is_sent(nats_url: str) -> None:
    async with couple(nats_url) as (_, anna, box):
        released = asyncio.Event()

        async def tool(_: dict[str, Any]) -> Any:
            await released.wait()
            return RESULT

        asked = serve(box, "client:tool_call", tool)
        twins = [asyncio.create_task(anna.call("client:tool_call", call(timeout=4 + n, x=1))) for n in range(3)]
        await eventually(lambda: asked)
        assert (await anna.call("client:tool_call", call(x=2)))["code"] == 400
        released.set()
        assert [await twin for twin in twins] == [RESULT] * 3
        assert await anna.call("client:tool_call", call(x=1)) == RESULT
        refused = await anna.call("client:tool_call", call(x=2))
        assert refused["code"] == 400
        assert refused["details"] == {"field": "req_id"}
        assert await anna.call("client:tool_call", call(1, x=2)) == RESULT
        assert len(asked) == 2


async def test_large_requests_and_results_arrive_or_are_413_and_the_sockets_stay(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, gateways=2) as world,
        connected(world.gateways[0].url, auth={"max_message": 33 * MIB}, take=34 * MIB) as anna,
        connected(world.gateways[1].url) as box,
        connected(world.gateways[1].url, auth={"max_message": 20 * MIB}, take=20 * MIB) as big,
    ):
        await anna.join("agent", "anna", OFFICE)
        await box.join("computer", BOX, OFFICE)
        await big.join("computer", "big", OFFICE)

        async def tool(payload: dict[str, Any]) -> Any:
            size = payload["params"].get("size", len(payload["params"].get("text", "")))
            return RESULT | {"text": "x" * size}

        asked = serve(box, "client:tool_call", tool), serve(big, "client:tool_call", tool)
        answer = await anna.call("client:tool_call", call(1, timeout=30, size=5 * MIB), timeout=30)
        assert len(answer["text"]) == 5 * MIB
        refused = await anna.call("client:tool_call", call(2, timeout=30, text="x" * (4 * MIB)), timeout=30)
        assert refused["code"] == 413
        assert refused["details"]["limit"] == 4 * MIB
        assert len(asked[0]) == 1
        answer = await anna.call("client:tool_call", call(3, timeout=30, text="x" * (3 * MIB)), timeout=30)
        assert len(answer["text"]) == 3 * MIB
        payload = call(4, timeout=30, text="x" * (8 * MIB)) | {"computer": "big"}
        assert len((await anna.call("client:tool_call", payload, timeout=30))["text"]) == 8 * MIB
        # what was refused was not run, and may be sent again where there is room
        assert await anna.call("client:tool_call", call(2, timeout=30)) == RESULT | {"text": ""}


async def test_a_computer_may_not_send_client_events_nor_speak_for_another(nats_url: str) -> None:
    async with couple(nats_url) as (_, anna, box), connected(anna.sio.connection_url) as car:
        await car.join("computer", "car", OFFICE)
        assert (await car.call("client:tool_call", call()))["code"] == 403
        assert (await car.call("client:get_tools", query()))["code"] == 403
        assert (await car.call("client:get_skills", {"computer": BOX}))["code"] == 403
        assert (await car.call("server:update_tool_list", {"computer": BOX}))["code"] == 403
        assert (await car.call("server:tool_call_cancel", {"agent": "anna", "req_id": "1"}))["code"] == 403
        for event in ("update_config", "update_tool_list", "update_desktop", "update_finder", "update_skills"):
            assert await box.call(f"server:{event}", {"computer": BOX}) is None
            await eventually(partial(told_once, anna, f"notify:{event}", {"computer": BOX}))


async def test_a_native_and_a_socketio_computer_cannot_have_one_name(nats_url: str) -> None:
    async def native(verb: str, _: Incoming) -> Reply:
        return reply({"native": verb, "unknown": []})

    async with gateway_world(nats_url, gateways=2) as world, connected(world.gateways[0].url) as anna:
        await anna.join("agent", "anna", OFFICE)
        async with connected(world.gateways[1].url) as box:
            async with world.computer(OFFICE, BOX, native):
                done, why = await box.join("computer", BOX, OFFICE)
                assert done is False
                assert why
                assert len(world.gateways[1].computers) == 0
                for _ in range(20):
                    assert (await anna.call("client:get_tools", query()))["native"] == "get_tools"
            await eventually(lambda: joined(box), timeout=10)
            serve(box, "client:get_tools", echo)
            assert (await anna.call("client:get_tools", query()))["echo"]


def told_once(client: Client, event: str, payload: Any) -> bool:
    return client.told(event).count(payload) == 1


async def joined(client: Client) -> bool:
    done, _ = await client.join("computer", BOX, OFFICE)
    return bool(done)


async def test_room_mates_see_native_and_socketio_computers_alike(nats_url: str) -> None:
    async def native(verb: str, _: Incoming) -> Reply:
        return reply({"unknown": []})

    async with couple(nats_url) as (world, anna, box), world.computer(OFFICE, "native", native):
        for client in (anna, box):
            await eventually(
                partial(told_once, client, "notify:enter_office", {"office_id": OFFICE, "computer": "native"})
            )
        listed = await box.call("server:list_room", {"agent": BOX, "req_id": "1", "office_id": OFFICE})
        assert {session["name"] for session in listed["sessions"]} == {"anna", BOX, "native"}


async def test_a_killed_gateway_answers_503_and_its_computers_leave(nats_server: NatsServer) -> None:
    env = {
        "SMCP_NATS_URL": nats_server.url, "SMCP_GATEWAY_PORT": "0", "SMCP_LEASE_S": str(SHORT_LEASE_S),
        "SMCP_LOG_FORMAT": "json",
    }  # fmt: skip
    command = Path(sys.executable).with_name("smcp-gateway")
    async with (
        gateway_world(nats_server.url, lease_s=SHORT_LEASE_S) as world,
        connected(world.url) as anna,
        service_process(command, env=env) as victim,
    ):
        url = (await victim.logged("ready"))["url"]
        await anna.join("agent", "anna", OFFICE)
        async with connected(url) as box:
            await eventually(lambda: joined(box))
            asked = serve(box, "client:tool_call", hang(box))
            waiting = asyncio.create_task(anna.call("client:tool_call", call(timeout=60), timeout=60))
            await eventually(lambda: asked)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await victim.kill()
            answer = await waiting
            assert answer["code"] == 503
            assert answer["details"] == {"may_have_run": True}
            assert loop.time() - began < 5
            await eventually(lambda: anna.told("notify:leave_office"), timeout=10 * SHORT_LEASE_S)
            assert (await anna.call("client:get_tools", query()))["code"] == 404


async def test_nats_is_restarted_and_the_gate_is_closed_until_the_registry_has_confirmed(
    nats_server: NatsServer,
) -> None:
    async with couple(nats_server.url) as (world, anna, box):
        asked = serve(box, "client:tool_call", echo)
        serve(box, "client:get_tools", echo)
        assert (await anna.call("client:tool_call", call()))["echo"]
        computers = world.gateways[1].computers
        [owned] = computers._owned.values()
        assert computers._is_open(owned)
        await nats_server.stop()
        await eventually(lambda: not world.buses[1].connected)
        assert not computers._is_open(owned)
        await nats_server.start()

        async def answered() -> bool:
            return "echo" in await anna.call("client:get_tools", query())

        await eventually(answered, timeout=20)
        assert computers._is_open(owned)
        assert (await anna.call("client:tool_call", call(1)))["echo"]
        assert len(asked) == 2
        assert anna.told("notify:leave_office") == []


async def test_a_closed_gate_runs_nothing_but_knows_what_runs(nats_url: str) -> None:
    async with couple(nats_url) as (world, anna, box):
        released = asyncio.Event()

        async def tool(_: dict[str, Any]) -> Any:
            await released.wait()
            return RESULT

        asked = serve(box, "client:tool_call", tool)
        waiting = asyncio.create_task(anna.call("client:tool_call", call(timeout=20), timeout=20))
        await eventually(lambda: asked)
        world.gateways[1].computers.stop()  # closed, and not opened again
        known = await ask_pending(world, [["anna", "r0"]])
        assert orjson.loads(known.body) == {"unknown": [], "ended": []}
        strange = await ask_pending(world, [["anna", "r0"], ["anna", "r1"]])
        assert "Smcp-Not-Run" in strange.headers
        refused = await anna.call("client:tool_call", call(1, timeout=1))
        assert refused["code"] in (408, 503)
        assert len(asked) == 1
        released.set()
        assert await waiting == RESULT


async def ask_pending(world: World, calls: list[list[str]]) -> Reply:
    subject = subjects.client(OFFICE, BOX, "pending")
    return await world.buses[0].request(subject, orjson.dumps({"calls": calls}), timeout=5)


async def test_nothing_is_left_of_two_hundred_computers_that_join_leave_and_switch(nats_url: str) -> None:
    async with gateway_world(nats_url) as world:
        gateway, bus = world.gateways[0], world.buses[0]
        before = len(bus._received)
        async with connected(world.url) as box, connected(world.url) as car:
            for number in range(50):
                for client, name in ((box, BOX), (car, "car")):
                    assert await client.join("computer", name, f"office-{number}") == [True, None]
                    assert await client.join("computer", name, "next") == [True, None]
                    assert (await client.call("server:leave_office", {"office_id": "next"}))[0] is True
            await box.join("computer", BOX, OFFICE)
            await car.join("computer", "car", OFFICE)
            for _ in range(50):
                assert (await box.call("server:leave_office", {"office_id": "next"}))[0] is False
            await eventually(lambda: len(gateway.computers) == 2)
            await eventually(lambda: len(bus._received) == before + 3)
        await eventually(lambda: len(gateway.computers) == 0 and len(gateway.offices) == 0, timeout=10)
        await eventually(lambda: len(bus._received) == before)
        assert gateway.computers._offices == {}
