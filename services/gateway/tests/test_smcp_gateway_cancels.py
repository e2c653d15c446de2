"""Cancels, asked for or not: what becomes of the calls."""

import asyncio
from typing import Any

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.headers import ERROR
from smcp_testing.gateway_world import connected, gateway_world, reply
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.leaving_gateway import OFFICE, call
from smcp_testing.waiting import eventually

NOT_NOW = Reply(b'{"code":503,"message":"the registry does not answer now","details":{}}', {ERROR: "503"})


async def stubborn(verb: str, _: Incoming) -> Reply:
    """A Computer that settles no call."""
    if verb == "tool_call":
        await asyncio.Event().wait()
    return reply({"unknown": []})


async def test_a_second_cancel_that_fails_takes_nothing_back_of_the_first(nats_url: str) -> None:
    buses, failing = InterposedBuses(), False

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        if failing and subjects.verb_of(incoming.subject) == "tool_call_cancel":
            return NOT_NOW
        return await handler(incoming)

    buses.between = between
    async with (
        gateway_world(nats_url, bad=buses) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", stubborn),
    ):
        await anna.join("agent", "anna", OFFICE)
        waiting: asyncio.Task[Any] = asyncio.create_task(anna.call("client:tool_call", call(3)))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        cancel = {"agent": "anna", "req_id": "r3"}
        assert await anna.call("server:tool_call_cancel", cancel) is None
        failing = True
        assert (await anna.call("server:tool_call_cancel", cancel))["code"] == 503
        assert (await asyncio.wait_for(waiting, 5))["meta"] == {"a2c_cancelled": True}
