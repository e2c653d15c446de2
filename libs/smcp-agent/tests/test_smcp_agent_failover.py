"""Failover from a gateway that has lost NATS and answers 503 to one that is ready."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from smcp_agent import Disconnected, Reconnected, SmcpAgent, Unavailable
from smcp_agent.connecting.connection import CUT_OFF_REPLIES
from smcp_agent.connecting.link import Addresses
from smcp_agent.connecting.options import ConnectionOptions
from smcp_testing.fake_gateway import FakeGateway, fake_gateway

JsonObject = dict[str, Any]

CUT_OFF = {"code": 503, "message": "not available now", "details": {"may_have_run": False, "cut_off": True}}


async def cut_off(_: JsonObject) -> Any:
    return CUT_OFF


def lose_nats(gateway: FakeGateway) -> None:
    gateway.ready = False
    gateway.refusal = "503 not available now"
    gateway.answers["client:tool_call"] = cut_off


@asynccontextmanager
async def two_gateways() -> AsyncIterator[tuple[FakeGateway, FakeGateway]]:
    async with fake_gateway() as first, fake_gateway() as second:
        yield first, second


def agent_at(*gateways: FakeGateway) -> SmcpAgent:
    """With logins in its URLs, as a proxy before the gateways may ask for."""
    return SmcpAgent([gateway.url.replace("//", "//me:secret@") for gateway in gateways], office="office", name="bot")


async def is_refused(agent: SmcpAgent) -> bool:
    try:
        await agent.call_tool("red", "echo")
    except Unavailable:
        return True
    return False


async def test_an_agent_fails_over_after_repeated_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_agent.connecting.link.SETTLE_S", 0.2)
    async with two_gateways() as (first, second), agent_at(first, second) as agent:
        stream = agent.events()
        lose_nats(first)
        refused = 0
        while await is_refused(agent):
            refused += 1
            await asyncio.sleep(0)  # an application that goes on asking
        assert refused >= CUT_OFF_REPLIES
        assert isinstance(await anext(stream), Disconnected)
        assert await anext(stream) == Reconnected(second.url.replace("//", "//<redacted>@"))


async def test_an_agent_stays_if_no_other_gateway_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.connecting.link.SETTLE_S", 0.0)
    async with two_gateways() as (first, second), agent_at(first, second) as agent:
        stream = agent.events()
        lose_nats(first)
        second.ready = False
        asked = second.readiness_asked
        while second.readiness_asked < asked + 3:
            assert await is_refused(agent)
            await asyncio.sleep(0)
        first.answers, second.ready = {}, True
        assert (await agent.call_tool("red", "echo")).text == "echo"
        assert stream.waiting == 0, "it was connected all the time"
        assert second.received == []


async def test_an_agent_stays_if_nats_comes_back_to_another_gateway_a_little_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_agent.connecting.link.SETTLE_S", 3600.0)  # a little, on however slow a machine
    async with two_gateways() as (first, second), agent_at(first, second) as agent:
        stream = agent.events()
        lose_nats(first)
        asked = second.readiness_asked
        while second.readiness_asked < asked + 3:
            assert await is_refused(agent)
            await asyncio.sleep(0)
        first.answers, first.ready = {}, True
        assert (await agent.call_tool("red", "echo")).text == "echo"
        assert stream.waiting == 0, "it was connected all the time"
        assert second.received == []


async def test_a_503_that_is_not_about_nats_causes_no_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.connecting.link.SETTLE_S", 0.0)
    async with two_gateways() as (first, second), agent_at(first, second) as agent:

        async def unavailable(_: JsonObject) -> Any:
            return {"code": 503, "message": "the Computer is not available now", "details": {"may_have_run": False}}

        first.answers["client:tool_call"] = unavailable
        for _ in range(3 * CUT_OFF_REPLIES):
            with pytest.raises(Unavailable):
                await agent.call_tool("red", "echo")
        assert second.readiness_asked == 0
        assert agent.connected


async def test_an_agent_enters_by_the_next_gateway_if_a_join_is_unavailable() -> None:
    async with two_gateways() as (first, second):
        lose_nats(first)
        async with agent_at(first, second) as agent:
            assert len(first.seen("server:join_office")) == 1
            assert len(second.seen("server:join_office")) == 1
            assert (await agent.call_tool("red", "echo")).text == "echo"


async def test_a_join_that_every_gateway_refuses_fails_after_one_round() -> None:
    async with two_gateways() as (first, second):
        first.refusal = second.refusal = "503 no registry answered"
        with pytest.raises(Unavailable, match="no registry answered"):
            async with agent_at(first, second):
                pytest.fail("it was refused")
        assert [len(each.seen("server:join_office")) for each in (first, second)] == [1, 1]


async def test_a_rejoin_that_stays_unavailable_moves_to_the_next_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_gateways() as (first, second), agent_at(first, second) as agent:
        stream = agent.events()
        lose_nats(first)
        first.cut()
        async with asyncio.timeout(20):
            assert isinstance(await anext(stream), Disconnected)
            assert await anext(stream) == Reconnected(second.url.replace("//", "//<redacted>@"))
        assert (await agent.call_tool("red", "echo")).text == "echo"


async def test_a_url_that_does_not_answer_takes_its_share_of_the_time_to_connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes the connection, and nobody answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with fake_gateway() as gateway, asyncio.timeout(5):
            async with SmcpAgent([url, gateway.url], office="office", name="bot", connect_timeout=6) as agent:
                assert agent.connected


@pytest.mark.parametrize("path", ["", "/", "/smcp-here", "/smcp-here/"])
async def test_readiness_is_asked_at_readyz_beside_the_socketio_path(path: str) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.Response(status=200)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        own, url = "http://127.0.0.1:1", f"ws://127.0.0.1:{runner.addresses[0][1]}{path}?a2c_version=0.4.0"
        assert await Addresses([own, url]).ready_instead_of(own, ConnectionOptions())
        assert asked == [f"{path.rstrip('/')}/readyz"]
    finally:
        await runner.cleanup()
