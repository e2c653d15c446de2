"""What becomes of a call whose gateway dies, and of one whose network goes away."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from smcp_agent import CannotConnect, ConnectionLost, SmcpAgent
from smcp_agent.connecting.connection import connect
from smcp_agent.connecting.options import DEFAULT_TRANSPORTS, ConnectionOptions, Transport
from smcp_testing.fake_gateway import FakeGateway, answered_the_second_time, fake_gateway
from smcp_testing.line import open_line
from smcp_testing.waiting import eventually

SOON_S = 8.0
"""Much less than the time of a call."""


def agent_at(gateway: FakeGateway, **options: Any) -> SmcpAgent:
    return SmcpAgent(gateway.url, office="office", name="bot", **options)


def looks(caplog: pytest.LogCaptureFixture) -> int:
    """How many times an agent looked for a gateway in vain."""
    return sum("not connected yet" in record.getMessage() for record in caplog.records)


async def test_where_the_only_gateway_died_what_was_in_flight_ends_at_once_and_what_was_not_sent_waits() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        gateway.answers["client:tool_call"] = gateway.never
        sent = asyncio.create_task(agent.call_tool("red", "slow", timeout=60))
        await eventually(lambda: gateway.seen("client:tool_call"))
        await gateway.stop()
        await eventually(lambda: not agent.connected)
        unsent = asyncio.create_task(agent.call_tool("red", "echo", timeout=60))
        async with asyncio.timeout(SOON_S):
            with pytest.raises(ConnectionLost, match="the gateway is gone") as caught:
                await sent
        assert caught.value.may_have_run
        assert not unsent.done()
        del gateway.answers["client:tool_call"]
        await gateway.start()
        assert (await unsent).text == "echo"


async def test_an_agent_that_may_wait_gets_its_result_after_the_restart_of_the_only_gateway(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="smcp_agent.connecting.link")
    async with fake_gateway() as gateway, agent_at(gateway, resume_within=60) as agent:
        answered_the_second_time(gateway)
        call = asyncio.create_task(agent.call_tool("red", "slow", timeout=60))
        await eventually(lambda: gateway.seen("client:tool_call"))
        await gateway.stop()
        await eventually(lambda: looks(caplog))  # it has looked, and found nobody
        await gateway.start()
        assert (await call).text == "done"
        assert [bool(data.get("a2c_repeat")) for data in gateway.seen("client:tool_call")] == [False, True]


async def test_with_another_gateway_the_call_is_asked_again_there() -> None:
    async with fake_gateway() as first, fake_gateway() as second:
        async with SmcpAgent([first.url, second.url], office="office", name="bot") as agent:
            first.answers["client:tool_call"] = first.never
            call = asyncio.create_task(agent.call_tool("red", "echo", req_id="r1"))
            await eventually(lambda: first.seen("client:tool_call"))
            await first.stop()
            assert (await call).text == "echo"
            (repeat,) = second.seen("client:tool_call")
            assert (repeat["req_id"], repeat["a2c_repeat"]) == ("r1", True)
            await first.start()


async def test_a_network_that_is_away_is_no_dead_gateway_and_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="smcp_agent.connecting.link")
    async with fake_gateway() as gateway, open_line(gateway.port) as line:
        async with SmcpAgent(line.url, office="office", name="bot", resume_within=0) as agent:
            answered_the_second_time(gateway)
            call = asyncio.create_task(agent.call_tool("red", "slow", timeout=60))
            await eventually(lambda: gateway.seen("client:tool_call"))
            there, line.port = line.port, 1  # it takes connections, and breaks them
            line.cut()
            await eventually(lambda: looks(caplog) >= 2, timeout=30)
            assert not call.done()
            line.port = there
            assert (await call).text == "done"


@pytest.mark.parametrize("transport", DEFAULT_TRANSPORTS)
@pytest.mark.parametrize(("status", "gone"), [(502, True), (503, True), (504, True), (404, False), (500, False)])
async def test_a_proxy_says_whether_a_gateway_runs_behind_it(transport: Transport, status: int, gone: bool) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        with pytest.raises(CannotConnect) as refused:
            await connect(f"http://127.0.0.1:{runner.addresses[0][1]}", options(transport), lambda *_: None)
        assert refused.value.nobody_there is gone
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("transport", DEFAULT_TRANSPORTS)
async def test_a_port_where_nobody_listens_has_no_gateway_and_one_that_says_nothing_may_have(
    transport: Transport,
) -> None:
    async with fake_gateway() as gateway, open_line(gateway.port) as line:
        line.stall()
        with pytest.raises(CannotConnect) as refused:
            await connect(line.url, options(transport), lambda *_: None)
        assert not refused.value.nobody_there
    with pytest.raises(CannotConnect) as refused:
        await connect(line.url, options(transport), lambda *_: None)
    assert refused.value.nobody_there


def options(transport: Transport) -> ConnectionOptions:
    return ConnectionOptions(transports=[transport], connect_s=1.0)
