"""Failing subscriptions."""

import asyncio
from typing import Any

import pytest

from smcp_agent import (
    Closed,
    NotFound,
    SmcpAgent,
    Unavailable,
)
from smcp_testing.context_computer import ContextComputer, agent_beside
from smcp_testing.fake_gateway import FakeGateway, fake_gateway
from smcp_testing.waiting import eventually

SUBSCRIBE = "client:resources/subscribe"
A, B = "file:///a", "file:///b"

JsonObject = dict[str, Any]


def at(gateway: FakeGateway) -> tuple[SmcpAgent, ContextComputer]:
    red = ContextComputer("red")
    return agent_beside(red, gateway), red


async def test_a_renewal_that_fails_is_repeated() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            await agent.subscribe_resource("red", B)
            subscribe = gateway.answers[SUBSCRIBE]
            failures = [
                {"code": 503, "message": "not now", "details": {}},
                {"code": 404, "message": "x", "details": {}},
            ]

            async def at_last(data: JsonObject) -> Any:
                return failures.pop() if failures else await subscribe(data)

            gateway.answers[SUBSCRIBE] = at_last
            red.subscribed.clear()
            gateway.cut()
            await eventually(lambda: red.subscribed == {A, B})


async def test_a_renewal_waits_as_long_as_a_refusal_asks() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            subscribe, asked_at = gateway.answers[SUBSCRIBE], list[float]()

            async def later(data: JsonObject) -> Any:
                asked_at.append(asyncio.get_running_loop().time())
                wait = {"code": 429, "message": "too many", "details": {"retry_after_s": 1.5}}
                return wait if len(asked_at) == 1 else await subscribe(data)

            gateway.answers[SUBSCRIBE] = later
            red.subscribed.clear()
            gateway.cut()
            await eventually(lambda: red.subscribed == {A})
            assert asked_at[1] - asked_at[0] >= 1.4


async def test_of_two_requests_at_a_time_the_granted_one_counts() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        subscribe, first, second = gateway.answers[SUBSCRIBE], asyncio.Event(), asyncio.Event()

        async def refused_first(data: JsonObject) -> Any:
            if not first.is_set():
                first.set()
                await second.wait()
                return {"code": 404, "message": "not yet", "details": {}}
            second.set()
            return await subscribe(data)

        gateway.answers[SUBSCRIBE] = refused_first
        async with agent:
            asked = asyncio.create_task(agent.subscribe_resource("red", A))
            await asyncio.wait_for(first.wait(), 30)
            await agent.subscribe_resource("red", A)
            with pytest.raises(NotFound):
                await asked
            assert [each.uri for each in agent.subscriptions()] == [A]
            red.subscribed.clear()
            gateway.cut()
            await eventually(lambda: red.subscribed == {A})


async def test_a_refused_subscription_is_not_renewed() -> None:
    async with fake_gateway() as gateway:
        agent, _ = at(gateway)

        async def not_there(data: JsonObject) -> Any:
            return {"code": 404, "message": "no such Computer", "details": {}}

        async with agent:
            gateway.answers[SUBSCRIBE] = not_there
            with pytest.raises(NotFound):
                await agent.subscribe_resource("gone", A)
            assert agent.subscriptions() == ()
        with pytest.raises(Closed):
            await agent.subscribe_resource("red", A)
        with pytest.raises(Unavailable):
            await agent.desktop("red")


async def test_what_a_computer_grants_after_its_request_was_cancelled_is_ended() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        subscribe, asked, may_end = gateway.answers[SUBSCRIBE], asyncio.Event(), asyncio.Event()

        async def granted_unheard(data: JsonObject) -> Any:
            await subscribe(data)
            asked.set()
            await may_end.wait()

        gateway.answers[SUBSCRIBE] = granted_unheard
        async with agent:
            task = asyncio.create_task(agent.subscribe_resource("red", A))
            await asyncio.wait_for(asked.wait(), 30)
            assert red.subscribed == {A}
            task.cancel()
            await eventually(lambda: not red.subscribed)
            assert agent.subscriptions() == ()
            may_end.set()
