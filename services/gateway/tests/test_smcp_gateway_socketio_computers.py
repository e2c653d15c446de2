"""Computers on Socket.IO: an Agent on any replica cannot tell one from a native one."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.gateway_world import SHORT_LEASE_S, Client, connected, gateway_world, reply
from smcp_testing.nats_process import NatsServer
from smcp_testing.service_process import service_process
from smcp_testing.socketio_pair import BOX, OFFICE, RESULT, call, couple, echo, hang, query, serve
from smcp_testing.waiting import Stopwatch, eventually


@pytest.mark.parametrize(
    "error",
    [
        {"code": 404, "message": "no such tool", "details": {}},
        {"code": 4014, "message": "MCP Server not registered", "mcp_server": "x"},
        {"code": 403, "message": "no", "details": {"field": "computer"}},
    ],
)
async def test_an_error_of_the_computer_passes_as_that_error(nats_url: str, error: dict[str, Any]) -> None:
    async with couple(nats_url) as pair:

        async def refuse(_: dict[str, Any]) -> Any:
            return error

        serve(pair.box, "client:tool_call", refuse)
        serve(pair.box, "client:get_resources", refuse)
        assert await pair.anna.call("client:tool_call", call()) == error
        assert await pair.anna.call("client:get_resources", query()) == error


@pytest.mark.rule("answers.calls.result.readable")
async def test_an_answer_that_is_not_an_object_is_500_and_both_sockets_stay_open(nats_url: str) -> None:
    answer: Any
    async with couple(nats_url) as pair:

        async def odd(_: dict[str, Any]) -> Any:
            return answer

        serve(pair.box, "client:tool_call", odd)
        serve(pair.box, "client:get_tools", odd)
        serve(pair.box, "client:get_config", echo)
        odd_answers = (None, "text", 17, [RESULT], (RESULT, RESULT), True, (), b"bytes")
        for number, answer in enumerate(odd_answers):  # noqa: B007 -- `odd` returns it
            for event, payload in (("client:tool_call", call(number)), ("client:get_tools", query())):
                refused = await pair.anna.call(event, payload)
                assert refused["code"] == 500
                assert "JSON" in refused["message"]
            assert (await pair.anna.call("client:get_config", query()))["echo"]


async def test_an_empty_answer_is_an_error_that_says_the_request_may_be_unknown(nats_url: str) -> None:
    async with couple(
        nats_url
    ) as pair:  # its client, python-socketio's own, acknowledges so what it has no handler for
        refused = await pair.anna.call("client:get_finder", query())
        assert (refused["code"], refused["details"]) == (500, {})
        assert "may not know this request" in refused["message"]


async def test_a_native_and_a_socketio_computer_cannot_have_one_name(nats_url: str) -> None:
    async def native(verb: str, _: Incoming) -> Reply:
        return reply({"native": verb, "unknown": []})

    async with gateway_world(nats_url, gateways=2) as world, connected(world.gateways[0].url) as anna:
        await anna.join("agent", "anna", OFFICE)
        async with connected(world.gateways[1].url) as box:
            async with world.computer(OFFICE, BOX, native):
                done, why, *_ = await box.join("computer", BOX, OFFICE)
                assert done is False
                assert why
                assert len(world.gateways[1].computers) == 0
                for _ in range(20):
                    assert (await anna.call("client:get_tools", query()))["native"] == "get_tools"
            await eventually(lambda: joined(box))
            serve(box, "client:get_tools", echo)
            assert (await anna.call("client:get_tools", query()))["echo"]


async def joined(client: Client) -> bool:
    done, *_ = await client.join("computer", BOX, OFFICE)
    return bool(done)


@pytest.mark.rule("answers.calls.death.socketio")
async def test_a_killed_gateway_answers_503_and_its_computers_leave(nats_server: NatsServer) -> None:
    env = {
        "SMCP_NATS_URL": nats_server.url, "SMCP_GATEWAY_PORT": "0", "SMCP_LEASE_S": str(SHORT_LEASE_S),
        "SMCP_LOG_FORMAT": "json",
    }  # fmt: skip
    command = born(Path(sys.executable).with_name("smcp-gateway"), knows=COMMANDS)
    async with (
        gateway_world(nats_server.url, lease_s=SHORT_LEASE_S) as world,
        connected(world.url) as anna,
        service_process(*command, env=env) as victim,
    ):
        url = (await victim.logged("ready"))["url"]
        await anna.join("agent", "anna", OFFICE)
        async with connected(url) as box:
            await eventually(lambda: joined(box))
            asked = serve(box, "client:tool_call", hang(box))
            waiting = asyncio.create_task(anna.call("client:tool_call", call(timeout=60), timeout=60))
            await eventually(lambda: asked)
            watch = Stopwatch()
            await victim.kill()
            answer = await waiting
            assert answer["code"] == 503
            assert answer["details"] == {"may_have_run": True, "gone": True}
            assert watch.undisturbed < 5
            await eventually(lambda: anna.told("notify:leave_office"))
            assert (await anna.call("client:get_tools", query()))["code"] == 404


async def test_computers_that_join_leave_and_switch_leave_nothing_behind(nats_url: str) -> None:
    async with gateway_world(nats_url) as world:
        gateway, bus = world.gateways[0], world.buses[0]
        before = bus.stats()["subscriptions"]
        async with connected(world.url) as box, connected(world.url) as car:
            for number in range(20):
                for client, name in ((box, BOX), (car, "car")):
                    assert await client.join("computer", name, f"office-{number}") == [True, None]
                    assert await client.join("computer", name, "next") == [True, None]
                    assert (await client.call("server:leave_office", {"office_id": "next"}))[0] is True
            await box.join("computer", BOX, OFFICE)
            await car.join("computer", "car", OFFICE)
            for _ in range(20):
                assert (await box.call("server:leave_office", {"office_id": "next"}))[0] is False
            await eventually(lambda: len(gateway.computers) == 2)
            await eventually(lambda: bus.stats()["subscriptions"] == before + 3)
        await eventually(lambda: len(gateway.computers) == 0 and len(gateway.offices) == 0)
        await eventually(lambda: bus.stats()["subscriptions"] == before)
