"""Connections that join, call and vanish leave nothing behind, however they go."""

import asyncio
import json
from collections import Counter

import aiohttp
import pytest
from aiohttp import web

from smcp_bus.bus import Incoming, Reply
from smcp_testing.gateway_world import World, gateway_world, reply
from smcp_testing.held_counts import alive, held, held_at_rest, places
from smcp_testing.profiles import scaled
from smcp_testing.raw_client import RawClient, raw_client
from smcp_testing.waiting import eventually

VISITS = scaled(ci=40, soak=500)
"""Two connections each."""
AT_ONCE = 20


async def hang(verb: str, _: Incoming) -> Reply:
    if verb == "tool_call":
        await asyncio.Event().wait()
    return reply({"unknown": []})


async def call(agent: RawClient, number: int, computer: str) -> None:
    payload = {"agent": f"a{number}", "req_id": f"{computer}-{number}", "computer": computer, "tool_name": "t"}
    await agent.event("client:tool_call", json.dumps(payload | {"params": {}, "timeout": 600}))


async def go(client: RawClient, number: int) -> None:
    match number % 4:
        case 0:
            await client.vanish()
        case 1:
            await client.socket.send_str("41/smcp,")
        case 2:
            await client.socket.send_str("1")
        case _:
            await client.socket.close()


async def visit(world: World, http: aiohttp.ClientSession, number: int) -> None:
    """An Agent and a Socket.IO Computer in an office of their own; calls run when they go."""
    url = world.gateways[number % 2].url
    other = world.gateways[number // 2 % 2].url
    async with raw_client(url, http=http) as agent, raw_client(other, http=http) as box:
        office = f"office-{number}"
        assert await box.join("computer", "box", office) == [True, None]
        assert await agent.join("agent", f"a{number}", office) == [True, None]
        for computer in ("box", "nobody"):
            await call(agent, number, computer)
        if number % 5:
            await box.asked("client:tool_call")
        if number % 3 == 0:
            await agent.event("server:leave_office", json.dumps({"office_id": office}))
            await agent.event(
                "server:join_office", json.dumps({"role": "agent", "name": f"a{number}", "office_id": office})
            )
        first, second = (agent, box) if number % 2 else (box, agent)
        await go(first, number)
        await go(second, number // 4)


async def test_a_thousand_connections_that_join_call_and_disconnect_leave_nothing_behind(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, gateways=2, registries=2, lease_s=30.0) as world,
        world.computer("stays", "box", hang),
        world.bus("asks") as bus,
    ):
        await eventually(lambda: all(not gateway.readiness.problems() for gateway in world.gateways))
        kept = await places(bus)
        before, objects = await held_at_rest(world), alive()
        peak = Counter[str]()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            for start in range(0, VISITS, AT_ONCE):
                visits = [visit(world, http, number) for number in range(start, min(start + AT_ONCE, VISITS))]
                await asyncio.gather(*visits)
                peak |= Counter(held(world))
        assert peak["offices"] > 0, "they were there"

        def settled() -> bool:
            assert held(world) == before
            assert alive() == objects
            return True

        await eventually(settled)

        async def gone() -> bool:
            now = await places(bus)
            assert now["members"] == kept["members"]
            assert sorted(now["leases"]) == sorted(kept["leases"])
            assert len(now["tombstones"]) == 2 * VISITS
            return True

        await eventually(gone)


@pytest.mark.parametrize("transport", ["websocket", "an upgrade"])
async def test_a_client_that_disconnects_before_its_websocket_handshake_ends_leaves_nothing_behind(
    nats_url: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_world(nats_url) as world, aiohttp.ClientSession() as http:
        gateway = world.gateways[0]
        path, polling = f"{gateway.url}/socket.io/?EIO=4&transport=", ""
        before = gateway.held()
        if transport == "an upgrade":
            async with http.get(f"{path}polling") as opened:
                sid = json.loads((await opened.read())[1:])["sid"]
            polling, path = f"{path}polling&sid={sid}", f"{path}websocket&sid={sid}"
        else:
            path = f"{path}websocket"
        asked, answered, answer = asyncio.Event(), asyncio.Event(), gateway.front.answer
        assert answer is not None

        async def late(request: web.Request) -> web.StreamResponse:
            asked.set()
            await eventually(lambda: request.transport is None or request.transport.is_closing())
            try:
                return await answer(request)
            finally:
                answered.set()

        gateway.front.answer = late
        async with asyncio.timeout(30):
            connecting = asyncio.ensure_future(http.ws_connect(path))
            await asked.wait()  # the answer comes when it has gone
            connecting.cancel()
            await answered.wait()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        gateway.front.answer = answer
        if transport == "an upgrade":  # its polling session goes on
            async with http.post(polling, data="1") as closed:
                assert closed.status == 200
        await eventually(lambda: gateway.held() == before)
