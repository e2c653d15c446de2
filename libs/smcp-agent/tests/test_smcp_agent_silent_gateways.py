"""Suspended gateway hosts: their connections stay open, and nothing is received."""

import asyncio
from typing import Any

import pytest

from smcp_agent import Disconnected, Reconnected, SmcpAgent
from smcp_testing.fake_gateway import Json, answered_the_second_time, fake_gateway
from smcp_testing.tcp_proxy import open_line
from smcp_testing.waiting import eventually, within

PING_TIMEOUT_S = 1.0
SOON_S = 8.0
"""Less than the 10 s that one connection may take to open."""


@pytest.mark.rule("answers.rooms.sdk-silence")
async def test_a_call_at_a_silent_gateway_is_repeated_at_another_url() -> None:
    times: list[float] = []

    async def unanswered(data: Json) -> None:
        times.append(asyncio.get_running_loop().time())
        await first.never(data)

    async def joined(data: Json) -> Any:
        times.append(asyncio.get_running_loop().time())
        return [True, None]

    async with (
        fake_gateway(ping_timeout=PING_TIMEOUT_S) as first,
        fake_gateway() as second,
        open_line(first.port) as line,
        SmcpAgent([line.url, second.url], office="office", name="bot") as agent,
    ):
        first.answers["client:tool_call"] = unanswered
        second.answers["server:join_office"] = joined
        stream = agent.events()
        call = asyncio.create_task(agent.call_tool("red", "echo", req_id="r1"))
        await eventually(lambda: first.seen("client:tool_call"))
        line.stall()
        async with within(SOON_S):
            assert (await call).text == "echo"
        (repeat,) = second.seen("client:tool_call")
        assert repeat["req_id"] == "r1"
        asked, joined_again = times
        assert repeat["a2c_repeat"] > 1000 * (joined_again - asked) - 1, "the age of the call in ms, rounded down"
        lost = await anext(stream)
        assert isinstance(lost, Disconnected)
        assert "nothing was heard" in lost.reason
        assert await anext(stream) == Reconnected(second.url)


@pytest.mark.rule("answers.rooms.sdk-silence")
async def test_a_call_is_repeated_when_a_silent_gateway_answers_again() -> None:
    async with (
        fake_gateway(ping_timeout=PING_TIMEOUT_S) as gateway,
        open_line(gateway.port) as line,
        SmcpAgent(line.url, office="office", name="bot") as agent,
    ):
        answered_the_second_time(gateway)
        sent = asyncio.create_task(agent.call_tool("red", "echo", timeout=60))
        await eventually(lambda: gateway.seen("client:tool_call"))
        line.stall()
        await eventually(lambda: not agent.connected)
        assert not sent.done()
        line.resume()
        assert (await sent).text == "done"


async def test_a_silent_url_does_not_delay_the_next_one() -> None:
    async with fake_gateway() as gateway, open_line(gateway.port) as silent:
        silent.stall()
        async with within(SOON_S):
            async with SmcpAgent([silent.url, gateway.url], office="office", name="bot") as agent:
                assert (await agent.call_tool("red", "echo")).text == "echo"
        await eventually(lambda: gateway.sessions == [])
