"""A gateway that has lost NATS and answers everything 503: the agent goes to one that is ready, and to no other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from smcp_agent import Disconnected, Reconnected, SmcpAgent, Unavailable
from smcp_agent.connecting.addresses import Addresses
from smcp_agent.connecting.cut_off import CutOff
from smcp_agent.connecting.options import ConnectionOptions
from smcp_proto.schemas import EnterOfficeReq
from smcp_testing.fake_gateway import FakeGateway, fake_gateway
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]

LEASE_S = 3.0
CUT_OFF = {"code": 503, "message": "not available now", "details": {"may_have_run": False, "cut_off": True}}


async def cut_off(_: JsonObject) -> Any:
    return CUT_OFF


def lose_nats(gateway: FakeGateway) -> None:
    gateway.ready = False
    gateway.refusal = "503 not available now"
    gateway.answers = dict.fromkeys(("client:tool_call", "server:list_room"), cut_off)


def have_nats_again(gateway: FakeGateway) -> None:
    gateway.ready, gateway.refusal, gateway.answers = True, None, {}


@asynccontextmanager
async def two_gateways(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[FakeGateway, FakeGateway]]:
    monkeypatch.setattr("smcp_agent.connecting.cut_off.LOOK_AGAIN_S", 0.1)
    # of a gateway's pings and its patience the lease is told; 0.2 s between two pings
    async with fake_gateway(ping_timeout=0.7 * LEASE_S - 0.2) as first:
        async with fake_gateway(ping_timeout=0.7 * LEASE_S - 0.2) as second:
            yield first, second


def agent_at(*gateways: FakeGateway) -> SmcpAgent:
    return SmcpAgent([gateway.url for gateway in gateways], office="office", name="bot")


async def test_an_agent_leaves_a_gateway_that_says_for_a_lease_that_it_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_gateways(monkeypatch) as (first, second), agent_at(first, second) as agent:
        stream = agent.events()
        lose_nats(first)
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable) as refused:
            await agent.call_tool("red", "echo")
        assert refused.value.details == CUT_OFF["details"]
        async with asyncio.timeout(20):
            assert isinstance(await anext(stream), Disconnected)
            assert asyncio.get_running_loop().time() - began >= LEASE_S
            assert await anext(stream) == Reconnected(second.url)
        assert (await agent.call_tool("red", "echo")).text == "echo"


async def test_an_agent_stays_at_a_gateway_that_has_nats_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_gateways(monkeypatch) as (first, second), agent_at(first, second) as agent:
        stream = agent.events()
        lose_nats(first)
        second.ready = False
        with pytest.raises(Unavailable):
            await agent.call_tool("red", "echo")
        listed = len(first.seen("server:list_room"))
        # it looks again and again, and finds nobody better
        await eventually(lambda: len(first.seen("server:list_room")) >= listed + 3)
        assert agent.connected
        have_nats_again(first)
        listed = len(first.seen("server:list_room"))
        await eventually(lambda: len(first.seen("server:list_room")) > listed)
        second.ready = True
        assert (await agent.call_tool("red", "echo")).text == "echo"
        assert stream.waiting == 0, "it was connected all the time"
        assert second.received == []


async def test_two_looks_have_to_find_another_gateway_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_gateways(monkeypatch) as (first, second), agent_at(first, second) as agent:
        stream = agent.events()
        lose_nats(first)
        with pytest.raises(Unavailable):
            await agent.call_tool("red", "echo")
        listed = len(first.seen("server:list_room"))
        await eventually(lambda: len(first.seen("server:list_room")) > listed)  # the first look found the second ready
        have_nats_again(first)
        await eventually(lambda: len(first.seen("server:list_room")) > listed + 1)
        assert (await agent.call_tool("red", "echo")).text == "echo"
        assert stream.waiting == 0


async def test_a_503_that_says_nothing_of_nats_is_no_reason_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_gateways(monkeypatch) as (first, second), agent_at(first, second) as agent:

        async def unavailable(_: JsonObject) -> Any:
            return {"code": 503, "message": "the Computer is not available now", "details": {"may_have_run": False}}

        first.answers["client:tool_call"] = unavailable
        with pytest.raises(Unavailable):
            await agent.call_tool("red", "echo")
        connection = agent._link.connection
        assert connection is not None
        assert not connection.doubted.is_set()
        first.answers["client:tool_call"] = cut_off
        with pytest.raises(Unavailable):
            await agent.call_tool("red", "echo")
        await eventually(lambda: len(first.seen("server:list_room")) > 1)  # it asked, and heard that all is well
        assert agent._link.connection is connection


async def test_an_agent_enters_by_a_gateway_that_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_gateways(monkeypatch) as (first, second):
        lose_nats(first)
        async with agent_at(first, second) as agent:
            assert len(first.seen("server:join_office")) == 1
            assert len(second.seen("server:join_office")) == 1
            assert (await agent.call_tool("red", "echo")).text == "echo"


@pytest.mark.parametrize("ready", [True, False])
async def test_where_the_gateway_is_ready_or_no_other_is_a_join_that_is_refused_is_an_error(
    monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    async with two_gateways(monkeypatch) as (first, second):
        first.refusal = "503 no registry answered"
        first.ready = second.ready = ready
        with pytest.raises(Unavailable, match="no registry answered"):
            async with agent_at(first, second):
                pytest.fail("it was refused")
        assert second.received == []


async def test_an_agent_that_comes_back_to_a_gateway_that_is_cut_off_goes_on_to_one_that_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_gateways(monkeypatch) as (first, second), agent_at(first, second) as agent:
        stream = agent.events()
        lose_nats(first)
        first.cut()
        async with asyncio.timeout(20):
            assert isinstance(await anext(stream), Disconnected)
            assert await anext(stream) == Reconnected(second.url)
        assert (await agent.call_tool("red", "echo")).text == "echo"


@pytest.mark.parametrize("path", ["", "/", "/smcp-here", "/smcp-here/"])
async def test_a_gateway_is_asked_beside_its_endpoint_whether_it_is_ready(path: str) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"ws://127.0.0.1:{runner.addresses[0][1]}{path}?a2c_version=0.4.0"
        place = EnterOfficeReq(role="agent", name="bot", office_id="office")
        cut = CutOff(Addresses([url, "http://127.0.0.1:1"]), ConnectionOptions(), place)
        assert not await cut.instead_of(url)
        assert asked == [f"{path.rstrip('/')}/readyz"]
    finally:
        await runner.cleanup()
