"""Calls that got lost, or their answers: broken lines, slow lines, and owners that forgot them."""

import asyncio
from typing import Any

import orjson
import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import NatsBus
from smcp_bus.nats.chunks import Send
from smcp_testing.bad_bus import interpose
from smcp_testing.box_calls import Hanging, ask, call, late, repeated
from smcp_testing.gateway_world import MIB, connected, gateway_world, reply
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually, within

OFFICE = "office"


@pytest.mark.rule("answers.calls.not-repeated")
@pytest.mark.parametrize("lost", ["unknown", "ended"])
async def test_a_lost_call_or_answer_is_503_at_once_and_not_sent_again(nats_url: str, lost: str) -> None:
    """The Computer does not know the call, or it has ended there and nothing comes."""
    calls = 0

    async def box(verb: str, incoming: Incoming) -> Reply:
        nonlocal calls
        if verb == "pending":
            return reply({"unknown": []} | {lost: orjson.loads(incoming.body)["calls"]})
        calls += 1
        await asyncio.Event().wait()
        raise AssertionError

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        answer = await ask(anna, call(), timeout=60)
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": True})
        assert calls == 1
        assert len(world.gateways[0].calls) == 0


async def test_a_query_that_its_living_owner_is_not_running_is_503_at_once(nats_url: str) -> None:
    async def box(verb: str, incoming: Incoming) -> Reply:
        if verb == "pending":
            return reply({"unknown": [], "lost_queries": orjson.loads(incoming.body)["queries"]})
        await asyncio.Event().wait()  # as one that never came
        raise AssertionError

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        asked = {"agent": "anna", "req_id": "q", "computer": "box"}
        answer = await anna.call("client:get_tools", asked, timeout=20)  # a query has 30 s
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": True})


@pytest.mark.rule("answers.calls.not-repeated")
async def test_a_call_whose_connection_broke_is_503_at_once_and_is_not_sent_again(nats_server: NatsServer) -> None:
    hanging = Hanging()
    async with (
        gateway_world(nats_server.url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", hanging),
    ):
        await anna.join("agent", "anna", OFFICE)
        asking = asyncio.create_task(ask(anna, call(), timeout=60))
        await asyncio.wait_for(hanging.running.wait(), 30)
        hanging.running.clear()
        await nats_server.restart()
        answer = await asking
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": True})
        assert not hanging.running.is_set()
        hanging.released.set()
        assert await repeated(anna, call(), timeout=60) == {"unknown": []}, "a repeat waits for the connection"


async def test_an_answer_that_is_being_pulled_is_not_lost_although_its_call_has_ended(nats_url: str) -> None:
    body = b'"' + b"x" * (4 * MIB - 2) + b'"'
    calls = 0
    pulled = False

    def slow(send: Send) -> Send:
        later = late(1.5, send)

        def answer(subject: str, back: str, head: bytes, part: bytes | memoryview) -> None:
            nonlocal pulled
            pulled = True
            later(subject, back, head, part)

        return answer

    async def large(verb: str, incoming: Incoming) -> Reply:
        nonlocal calls
        if verb == "pending":  # an owner does not say it of an answer that may still be on its way
            return reply({"unknown": [], "ended": orjson.loads(incoming.body)["calls"] if pulled else []})
        calls += 1
        return Reply(body)

    async with (
        gateway_world(nats_url) as world,
        connected(world.url, auth={"max_message": 8 * MIB}, take=9 * MIB) as anna,
        world.computer(OFFICE, "box", large) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        loop = asyncio.get_running_loop()
        assert isinstance(box.bus, NatsBus)
        interpose(box.bus, slow)
        began = loop.time()
        assert len(await ask(anna, call(), timeout=60)) == 4 * MIB - 2
        assert loop.time() - began > 1.4
        assert calls == 1


async def test_a_call_that_timed_out_may_have_run(nats_url: str) -> None:
    async def hang(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await asyncio.Event().wait()
        return reply({"unknown": []})

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", hang):
        await anna.join("agent", "anna", OFFICE)
        answer = await ask(anna, call(timeout=1), timeout=60)
        assert answer["code"] == 408
        assert answer["details"]["may_have_run"] is True


async def test_the_time_of_a_cancel_counts_from_its_arrival(nats_url: str) -> None:
    async def hang(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await asyncio.Event().wait()
        return reply({"unknown": []})

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", hang):
        await anna.join("agent", "anna", OFFICE)
        waiting = asyncio.create_task(ask(anna, call(timeout=60), timeout=60))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        bus = world.buses[0]
        request = bus.request

        async def slow(subject: str, *given: Any, **named: Any) -> Reply:
            if "tool_call_cancel" in subject:
                await released.wait()
            return await request(subject, *given, **named)

        released = asyncio.Event()
        bus.request = slow  # type: ignore[method-assign]
        await anna.sio.emit("server:tool_call_cancel", {"agent": "anna", "req_id": "r0"}, namespace="/smcp")
        async with within(3):
            answer = await waiting
        assert answer["meta"] == {"a2c_cancelled": True}
        released.set()
