"""Failing subscriptions: passing failures are retried, others are published to the application."""

import asyncio
from typing import Any

import pytest

from smcp_agent import (
    Closed,
    NotFound,
    SmcpAgent,
    Subscription,
    SubscriptionRefused,
    Unavailable,
)
from smcp_testing.context_computer import ContextComputer, agent_beside, quiet, watched
from smcp_testing.fake_gateway import FakeGateway, fake_gateway
from smcp_testing.waiting import eventually

SUBSCRIBE = "client:resources/subscribe"
A, B = "file:///a", "file:///b"
REFUSAL = {"code": -32602, "message": "no", "data": {"smcp_code": "SMCP_SUBSCRIPTION_NOT_SUPPORTED"}}

JsonObject = dict[str, Any]


def at(gateway: FakeGateway) -> tuple[SmcpAgent, ContextComputer]:
    red = ContextComputer("red")
    return agent_beside(red, gateway), red


async def test_a_renewal_that_fails_for_a_passing_reason_is_repeated() -> None:
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
            events = watched(agent)
            gateway.cut()
            await eventually(lambda: red.subscribed == {A, B})
            assert not any(isinstance(event, SubscriptionRefused) for event in events)


async def test_a_rate_limited_renewal_waits_for_the_requested_pause() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            uris = [f"file:///{number}" for number in range(3)]
            for uri in uris:
                await agent.subscribe_resource("red", uri)
            subscribe, asked = gateway.answers[SUBSCRIBE], []

            async def limited(data: JsonObject) -> Any:
                asked.append(data["payload"]["params"]["uri"])
                limit = {"code": 429, "message": "slowly", "details": {"retry_after_s": 0.1}}
                return limit if len(asked) == 2 else await subscribe(data)

            gateway.answers[SUBSCRIBE] = limited
            red.subscribed.clear()
            gateway.cut()
            await eventually(lambda: red.subscribed == set(uris))
            assert asked == [uris[0], uris[1], *uris[1:]]  # and not what would have been refused as well


@pytest.mark.parametrize("news", ["resources/list_changed", "update_capabilities", "update_tool_list"])
async def test_a_refused_renewal_is_published_once_and_repeated_when_the_computer_changed(news: str) -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            red.refusal, events = REFUSAL, watched(agent)
            red.subscribed.clear()
            gateway.cut()
            await eventually(lambda: any(isinstance(event, SubscriptionRefused) for event in events))
            (refused,) = [event for event in events if isinstance(event, SubscriptionRefused)]
            assert (refused.computer, refused.uri, refused.server) == ("red", A, None)
            assert refused.error.smcp_code == "SMCP_SUBSCRIPTION_NOT_SUPPORTED"
            await quiet(agent, red)
            assert len(red.seen(SUBSCRIBE)) == 2
            assert agent.subscriptions() == (Subscription("red", A),)
            red.refusal = None
            said = red.says("resources/list_changed") if "/" in news else {"computer": "red", "capabilities": {}}
            await gateway.notify(f"notify:{news}", **said)
            await eventually(lambda: red.subscribed == {A})


async def test_a_subscription_that_was_refused_and_then_granted_is_renewed_as_any_other() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            red.refusal, events = REFUSAL, watched(agent)
            red.subscribed.clear()
            gateway.cut()
            await eventually(lambda: any(isinstance(event, SubscriptionRefused) for event in events))
            red.refusal = None
            await agent.subscribe_resource("red", A)
            subscribe, failures = gateway.answers[SUBSCRIBE], [{"code": 503, "message": "not now", "details": {}}]

            async def at_last(data: JsonObject) -> Any:
                return failures.pop() if failures else await subscribe(data)

            gateway.answers[SUBSCRIBE] = at_last
            red.subscribed.clear()
            with pytest.raises(Unavailable):
                await agent.subscribe_resource("red", A)
            await eventually(lambda: red.subscribed == {A})


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_granted_subscription_is_kept_although_an_earlier_request_for_it_fails(cancelled: bool) -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        subscribe, asked, may_answer = gateway.answers[SUBSCRIBE], asyncio.Event(), asyncio.Event()

        async def refused(data: JsonObject) -> Any:
            gateway.answers[SUBSCRIBE] = subscribe
            asked.set()
            await may_answer.wait()
            return {"code": 404, "message": "no such Computer", "details": {}}

        async with agent:
            gateway.answers[SUBSCRIBE] = refused
            first = asyncio.create_task(agent.subscribe_resource("red", A))
            await asyncio.wait_for(asked.wait(), 30)
            second = asyncio.create_task(agent.subscribe_resource("red", A))
            await quiet(agent, red)
            if cancelled:
                first.cancel()
            may_answer.set()
            with pytest.raises(asyncio.CancelledError if cancelled else NotFound):
                await first
            await second
            assert agent.subscriptions() == (Subscription("red", A),)
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
