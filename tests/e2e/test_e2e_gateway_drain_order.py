"""In which order a gateway that stops keeps a client's place, begins nothing for it any more, and lets it go."""

import asyncio
import contextlib
import json
from typing import Any

import aiohttp
import pytest

from smcp_bus.bus import Incoming, Reply, RequestTimedOut
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Assertion, AssertionResult
from smcp_proto.backoff import Backoff
from smcp_proto.errors import NOTHING_BEGUN
from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.leaving_gateway import OFFICE, RESULT, Box, agent_and_box, call, gone, in_time, two_gateways
from smcp_testing.raw_client import raw_client
from smcp_testing.waiting import eventually


async def never(verb: str, _: Incoming) -> Reply:
    raise AssertionError(f"{verb} was sent to a Computer that is not there")


async def test_a_drained_client_gets_a_close_code_that_says_later_requests_were_not_begun(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as client,
        raw_client(leaving.url) as anna,
    ):
        await client.join("computer", "box", OFFICE)
        box = Box(client)
        await anna.join("agent", "anna", OFFICE)
        with anna.not_reading():
            left = leave()
            await eventually(lambda: not len(leaving.gateways[0].sessions))
            await anna.event("client:tool_call", json.dumps(call()))
        message = await anna.end()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, NOTHING_BEGUN)
        await in_time(left)
        assert box.asked == []


async def test_a_client_that_is_not_drained_gets_another_close_code(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, raw_client(world.url) as anna:
        (session,) = world.gateways[0].sessions
        await world.gateways[0].transport.hang_up(session, "for a test")
        message = await anna.end()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.OK)


async def test_a_client_is_served_until_its_seat_is_kept(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as anna,
        connected(leaving.url) as client,
    ):
        box = await agent_and_box(anna, client)
        box.released.set()
        asked, go = asyncio.Event(), asyncio.Event()
        assert_members = RegistryClient.assert_members

        async def slowly(registry: RegistryClient, assertion: Assertion, **how: Any) -> AssertionResult:
            asked.set()
            await go.wait()
            return await assert_members(registry, assertion, **how)

        monkeypatch.setattr(RegistryClient, "assert_members", slowly)
        left = leave()
        await in_time(asyncio.ensure_future(asked.wait()))
        assert await anna.call("client:tool_call", call()) == RESULT
        go.set()
        await gone(client)
        await in_time(left)


async def test_agents_stop_starting_calls_before_computers_stop_taking_them(nats_url: str) -> None:
    async with (
        two_gateways(nats_url, drain_s=12) as (_, leaving, leave),
        connected(leaving.url) as anna,
        connected(leaving.url) as client,
    ):
        box = await agent_and_box(anna, client)
        running = asyncio.create_task(anna.call("client:tool_call", call(0), timeout=30))
        await eventually(lambda: box.asked == ["r0"])
        sessions = {session.name: session for session in leaving.gateways[0].sessions}
        left = leave()
        await eventually(lambda: sessions["anna"].leaving)
        assert not sessions["box"].leaving
        await eventually(lambda: sessions["box"].leaving)
        box.released.set()
        assert await running == RESULT
        await in_time(left)


async def test_a_call_that_waits_for_a_moving_computer_at_the_end_of_the_drain_has_not_run(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        two_gateways(nats_url, drain_s=3) as (staying, leaving, leave),
        staying.computer(OFFICE, "box", never, served=False) as box,
        connected(leaving.url) as anna,
    ):
        await anna.join("agent", "anna", OFFICE)
        await box.moves(OFFICE, "box", staying)
        # An attempt under way when the drain ends may have run, as far as the gateway knows: let none be under way.
        monkeypatch.setattr(Backoff, "next", lambda _: 4.0)  # seconds; the drain takes 3
        waiting = asyncio.create_task(anna.call("client:tool_call", call(), timeout=30))
        await eventually(lambda: len(leaving.gateways[0].calls) == 1)
        left = leave()
        answer = await in_time(waiting)
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": False, "moving": True})
        await in_time(left)


async def test_keeping_a_seat_is_retried_while_calls_run(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        two_gateways(nats_url, drain_s=12) as (staying, leaving, leave),
        connected(staying.url) as anna,
        connected(leaving.url) as client,
    ):
        box = await agent_and_box(anna, client)
        running = asyncio.create_task(anna.call("client:tool_call", call(0), timeout=30))
        await eventually(lambda: box.asked == ["r0"])
        failures = 2
        assert_members = RegistryClient.assert_members

        async def not_yet(registry: RegistryClient, assertion: Assertion, **how: Any) -> AssertionResult:
            nonlocal failures
            if failures:
                failures -= 1
                raise RequestTimedOut("for a test")
            return await assert_members(registry, assertion, **how)

        monkeypatch.setattr(RegistryClient, "assert_members", not_yet)
        left = leave()
        (session,) = leaving.gateways[0].sessions
        await eventually(lambda: session.moving)
        assert session.leaving
        assert failures == 0
        box.released.set()
        assert await running == RESULT
        await gone(client)
        await in_time(left)


async def test_a_slow_registry_keeps_the_seat_and_nothing_is_announced(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as anna,
        connected(leaving.url) as client,
    ):
        await agent_and_box(anna, client)
        assert_members = RegistryClient.assert_members

        async def late(registry: RegistryClient, assertion: Assertion, **how: Any) -> AssertionResult:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await asyncio.Event().wait()
            return await assert_members(registry, assertion, **how)

        monkeypatch.setattr(RegistryClient, "assert_members", late)
        left = leave()
        await gone(client)
        await in_time(left)
        room = await anna.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": OFFICE})
        assert {session["name"] for session in room["sessions"]} == {"anna", "box"}
        assert anna.told("notify:leave_office") == []
