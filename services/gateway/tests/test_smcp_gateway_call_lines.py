"""Calls of Computers whose line breaks, is slow, or ends while a request arrives."""

import asyncio
from functools import partial
from typing import Any

import orjson

from smcp_bus.bus import Incoming, NoResponder, Reply
from smcp_gateway.calls import STILL_S
from smcp_testing.bad_bus import interpose
from smcp_testing.box_calls import ask, call, late
from smcp_testing.gateway_world import MIB, connected, gateway_world, reply
from smcp_testing.waiting import eventually

OFFICE = "office"


async def test_a_short_break_of_a_computers_connection_loses_no_call(nats_url: str) -> None:
    running, release, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(verb: str, incoming: Incoming) -> Reply:
        if verb == "pending":
            asked.set()
            return reply({"unknown": []})
        running.set()
        await release.wait()
        return reply({"content": "done"})

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", serve) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        gateways, missed = world.buses[0], asyncio.Event()
        request = gateways.request

        async def watched(*given: Any, **named: Any) -> Reply:
            try:
                return await request(*given, **named)
            except NoResponder:
                missed.set()
                raise

        gateways.request = watched  # type: ignore[method-assign]
        waiting = asyncio.create_task(ask(anna, call(), timeout=60))
        await asyncio.wait_for(running.wait(), 30)
        for _ in range(3):
            missed.clear()
            await _deaf(box.bus)
            await asyncio.wait_for(missed.wait(), 30)
            asked.clear()
            await _hearing(box.bus)
            await asyncio.wait_for(asked.wait(), 30)
            assert not waiting.done()
        release.set()
        assert await waiting == {"content": "done"}


async def _deaf(bus: Any) -> None:
    """As if the connection was gone: nats-server knows no subscription of it."""
    for sid in list(bus._received):
        bus.unsubscribe_at_server(sid)
    await bus.flush()


async def _hearing(bus: Any) -> None:
    for sid, received in list(bus._received.items()):
        bus._received.pop(sid)
        bus.detach(sid)
        await bus._subscribe(received, "owner")


async def test_a_large_request_on_a_slow_connection_is_not_given_up(nats_url: str) -> None:
    known = False

    async def serve(verb: str, incoming: Incoming) -> Reply:
        nonlocal known
        if verb == "pending":
            return reply({"unknown": [] if known else orjson.loads(incoming.body)["calls"]})
        known = True
        return reply({"length": len(orjson.loads(incoming.body)["params"]["x"])})

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", serve),
    ):
        await anna.join("agent", "anna", OFFICE)
        interpose(world.buses[0], partial(late, 2.0))
        assert await ask(anna, call(x="x" * 2 * MIB), timeout=60) == {"length": 2 * MIB}


async def test_a_computer_that_dies_while_receiving_a_large_request_is_noticed_before_the_timeout(
    nats_url: str,
) -> None:
    async def serve(verb: str, incoming: Incoming) -> Reply:
        return reply({"unknown": orjson.loads(incoming.body)["calls"]})

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", serve) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        interpose(world.buses[0], lambda _: lambda *__: None)  # no chunk comes through
        waiting = asyncio.create_task(ask(anna, call(x="x" * 2 * MIB), timeout=60))
        await eventually(lambda: any(known.arrives_until for known in world.gateways[0].calls))
        await _deaf(box.bus)
        died = asyncio.get_running_loop().time()
        answer = await waiting
        assert asyncio.get_running_loop().time() - died < STILL_S / 2, "the gateway asks it also while parts are moved"
        # Not the 408 of a call whose time was up. What else it says depends on who gives up first: the Computer, which
        # says that the body did not arrive and nothing ran; or the gateway, by the transfer or by asking the Computer,
        # whose lease may be over by then.
        assert answer["code"] in (404, 503)
        assert answer["code"] == 404 or "may_have_run" in answer["details"]
