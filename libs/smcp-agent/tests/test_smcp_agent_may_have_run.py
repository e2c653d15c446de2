"""Errors of a call that may have been sent have `may_have_run`."""

import asyncio
from typing import Any

import pytest

from smcp_agent import JoinRefused, SmcpAgent, may_have_run
from smcp_agent.errors import Closed, Unavailable
from smcp_testing.fake_gateway import FakeGateway, fake_gateway
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]


def agent_at(gateway: FakeGateway) -> SmcpAgent:
    return SmcpAgent(gateway.url, office="office", name="bot")


async def test_an_error_after_a_refused_rejoin_says_whether_the_call_may_have_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_agent.connecting.link.REFUSED_PATIENCE_S", 0.2)
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        gateway.answers["client:tool_call"] = gateway.never
        sent = asyncio.create_task(agent.call_tool("red", "pay", timeout=30))
        await eventually(lambda: gateway.seen("client:tool_call"))
        gateway.refusal = "another Agent came"
        gateway.cut()
        with pytest.raises(JoinRefused, match="another Agent came") as caught:
            await sent
        assert may_have_run(caught.value)
        with pytest.raises(JoinRefused) as caught:
            await agent.call_tool("red", "pay", timeout=30)
        assert not may_have_run(caught.value)


async def test_a_repeat_refused_by_a_stopping_gateway_may_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.rpc.GRACE_S", 0.0)
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            if not data.get("a2c_repeat"):
                gateway.cut()
                await gateway.never(data)
            return {"code": 503, "message": "connect again", "details": {"may_have_run": False, "moving": True}}

        gateway.answers["client:tool_call"] = answer
        with pytest.raises(Unavailable, match="connect again") as caught:
            await agent.call_tool("red", "pay", timeout=2)
        assert may_have_run(caught.value)
        assert ["a2c_repeat" in data for data in gateway.seen("client:tool_call")] == [False, True]


async def test_a_call_that_was_sent_before_its_agent_was_closed_may_have_run() -> None:
    async with fake_gateway() as gateway:
        async with agent_at(gateway) as agent:
            gateway.answers["client:tool_call"] = gateway.never
            sent = asyncio.create_task(agent.call_tool("red", "pay", timeout=30))
            await eventually(lambda: gateway.seen("client:tool_call"))
            gateway.cut()
        with pytest.raises(Closed) as caught:
            await sent
        assert may_have_run(caught.value)
        with pytest.raises(Closed) as caught:
            await agent.call_tool("red", "pay", timeout=30)
        assert not may_have_run(caught.value)
