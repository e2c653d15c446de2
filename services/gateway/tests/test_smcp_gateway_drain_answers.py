"""What the clients of a gateway that stops are answered, however slow their line or long their call."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Assertion, AssertionResult
from smcp_gateway.sockets import engine
from smcp_testing.gateway_world import MIB, NAMESPACE, connected
from smcp_testing.leaving_gateway import OFFICE, RESULT, Box, agent_and_box, call, gone, in_time, two_gateways
from smcp_testing.slow_reader import slow_reader
from smcp_testing.waiting import eventually


async def test_a_call_within_one_gateway_that_outlasts_the_drain_may_have_run(nats_url: str) -> None:
    async with (
        two_gateways(nats_url, drain_s=3) as (_, leaving, leave),
        connected(leaving.url) as anna,
        connected(leaving.url) as client,
    ):
        box = await agent_and_box(anna, client)
        waiting = asyncio.create_task(anna.call("client:tool_call", call(), timeout=30))
        await eventually(lambda: box.asked == ["r0"])
        left = leave()
        answer = await in_time(waiting)
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True}
        await in_time(left)


async def test_a_computer_that_switches_while_its_seat_is_being_kept_has_its_new_seat_kept(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as bert,
        connected(leaving.url) as client,
    ):
        await bert.join("agent", "bert", "another")
        await client.join("computer", "box", OFFICE)
        asked, go = asyncio.Event(), asyncio.Event()
        assert_members = RegistryClient.assert_members

        async def slowly(registry: RegistryClient, assertion: Assertion, **how: Any) -> AssertionResult:
            result = await assert_members(registry, assertion, **how)
            asked.set()
            await go.wait()
            return result

        monkeypatch.setattr(RegistryClient, "assert_members", slowly)
        left = leave()
        await in_time(asyncio.ensure_future(asked.wait()))
        assert await client.join("computer", "box", "another") == [True, None]
        await eventually(lambda: bert.told("notify:enter_office"))
        go.set()
        await gone(client)
        await in_time(left)
        async with connected(staying.url) as again:
            assert await again.join("computer", "box", "another") == [True, None]
            assert await again.call("server:update_config", {"computer": "box"}) is None
            await eventually(lambda: bert.told("notify:update_config"))
        assert len(bert.told("notify:enter_office")) == 1


async def test_a_client_that_was_connecting_when_the_gateway_stopped_gets_its_answer(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as first,
        connected(staying.url) as second,
        connected(leaving.url) as anna,
        aiohttp.ClientSession() as http,
    ):
        await first.join("computer", "box", OFFICE)
        await second.join("computer", "box", "late")
        boxes = Box(first), Box(second)
        await anna.join("agent", "anna", OFFICE)
        holds = asyncio.create_task(anna.call("client:tool_call", call(), timeout=30))
        await eventually(lambda: boxes[0].asked == ["r0"])
        async with http.ws_connect(f"{leaving.url}/socket.io/?EIO=4&transport=websocket") as late:
            await late.receive(timeout=10)
            left = leave()
            await eventually(leaving.gateways[0].readiness.problems)

            async def answer(message: str) -> str:
                await late.send_str(message)
                return await said("43" if message.startswith("42") else "40")

            async def said(begin: str) -> str:
                while not (text := (await late.receive(timeout=20)).data).startswith(begin):
                    if text == "2":
                        await late.send_str("3")
                return str(text)

            await answer(f"40{NAMESPACE},")
            join = {"role": "agent", "name": "anna", "office_id": "late"}
            assert (
                await answer(f"42{NAMESPACE},1" + json.dumps(["server:join_office", join])) == "43/smcp,1[[true,null]]"
            )
            await late.send_str(f"42{NAMESPACE},2" + json.dumps(["client:tool_call", call(7)]))
            await eventually(lambda: boxes[1].asked == ["r7"])
            boxes[0].released.set()
            assert await in_time(holds) == RESULT
            await gone(anna)
            boxes[1].released.set()
            assert json.loads((await said("43")).removeprefix("43/smcp,2")) == [RESULT]
        await in_time(left)


async def test_a_slow_reader_gets_all_answers_before_it_is_disconnected(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LINGER_S", 0.0)
    async with (  # beside 12 busy loops it takes up to 8 s
        two_gateways(nats_url, drain_s=30) as (staying, leaving, leave),
        connected(staying.url, auth={"max_message": 33 * MIB}, take=34 * MIB) as client,
        slow_reader(leaving.url, OFFICE) as anna,
    ):
        released, asked = asyncio.Event(), list[str]()

        async def tool(request: dict[str, Any]) -> dict[str, Any]:
            asked.append(request["req_id"])
            await released.wait()
            return RESULT | {"text": "x" * (12 * MIB)}

        client.sio.on("client:tool_call", tool, namespace=NAMESPACE)
        await client.join("computer", "box", OFFICE)
        for number in (1, 2):
            await anna.send(number, "client:tool_call", call(number, timeout=60))
        await eventually(lambda: len(asked) == 2)
        (session,) = leaving.gateways[0].sessions
        left = leave()
        released.set()
        await eventually(lambda: session.leaving)
        for _ in range(2):
            while not (text := await anna.read()).startswith("43/smcp,"):
                pass
            assert len(text) > 12 * MIB
        await in_time(left, 40)
