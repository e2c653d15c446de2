"""Subscriptions are renewed once, and only at a Computer that lost them."""

import asyncio
from typing import Any

import pytest

from smcp_agent import (
    ComputerLeft,
    Disconnected,
    Event,
    ResourcesChanged,
    ResourceUpdated,
    SmcpAgent,
    Subscription,
)
from smcp_proto.errors import NOTHING_BEGUN
from smcp_proto.schemas.resources import MISSED
from smcp_testing.context_computer import SERVER, ContextComputer, agent_beside, quiet, watched
from smcp_testing.fake_gateway import FakeGateway, fake_gateway
from smcp_testing.waiting import eventually

LIST_CHANGED = "notify:resources/list_changed"
SUBSCRIBE = "client:resources/subscribe"
UNSUBSCRIBE = "client:resources/unsubscribe"
A, B = "file:///a", "file:///b"

JsonObject = dict[str, Any]


def at(gateway: FakeGateway) -> tuple[SmcpAgent, ContextComputer]:
    red = ContextComputer("red")
    return agent_beside(red, gateway), red


def updates(events: list[Event]) -> list[ResourceUpdated]:
    return [event for event in events if isinstance(event, ResourceUpdated)]


def missed(computer: ContextComputer) -> JsonObject:
    """What a gateway says of a Computer of which the agent may have missed something."""
    return computer.says("resources/list_changed") | {"serverId": None, MISSED: True}


@pytest.mark.rule("computer.resources.agent.subscribe", "computer.resources.agent.unsubscribe")
async def test_a_subscription_lasts_until_it_is_ended() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A, server=SERVER)
            await agent.subscribe_resource(computer="red", uri=B)
            await agent.subscribe_resource("red", B)
            assert red.subscribed == {A, B}
            assert agent.subscriptions() == (Subscription("red", A, SERVER), Subscription("red", B))
            await agent.unsubscribe_resource("red", A, server=SERVER)
            assert (red.subscribed, agent.subscriptions()) == ({B}, (Subscription("red", B),))
            asked = [(data["serverId"], data["payload"]["method"]) for data in red.seen(UNSUBSCRIBE)]
            assert asked == [(SERVER, "resources/unsubscribe")]


@pytest.mark.rule("computer.resources.agent.cache.subscriptions")
async def test_subscriptions_are_renewed_and_published_after_their_computer_came_back() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            await agent.subscribe_resource("red", B)
            await agent.unsubscribe_resource("red", B)
            red.subscribed.clear()
            events = watched(agent)
            await gateway.leave("red")
            await eventually(lambda: ComputerLeft("red") in events)
            await gateway.enter("red", [])
            await eventually(lambda: ResourceUpdated("red", A) in events)
            assert red.subscribed == {A}
            # and one whose leave nobody heard
            red.subscribed.clear()
            await gateway.notify("notify:enter_office", office_id="office", computer="red")
            await eventually(lambda: red.subscribed)
            assert len(red.seen(SUBSCRIBE)) == 4


@pytest.mark.rule("computer.resources.agent.cache.subscriptions")
async def test_after_a_lost_membership_everything_is_subscribed_to_again() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            red.subscribed.clear()
            events = watched(agent)
            gateway.cut()
            await eventually(lambda: ResourceUpdated("red", A) in events)
            assert red.subscribed == {A}
            assert len(red.seen(SUBSCRIBE)) == 2


@pytest.mark.rule("computer.resources.agent.cache.subscriptions")
async def test_after_a_move_each_subscription_is_renewed_and_published_once() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            events = watched(agent)
            gateway.close_sockets(NOTHING_BEGUN)
            await eventually(lambda: ResourceUpdated("red", A) in events)
            await quiet(agent, red)
            assert events.count(ResourceUpdated("red", A)) == 1
            assert len(red.seen(SUBSCRIBE)) == 2


async def test_subscriptions_are_renewed_and_published_after_missed_notifications() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            await agent.subscribe_resource("red", B)
            events = watched(agent)
            await gateway.notify(LIST_CHANGED, **red.says("resources/list_changed"))  # it says so itself
            await gateway.notify(LIST_CHANGED, **missed(red) | {"computerId": "gone"})
            await eventually(lambda: ResourcesChanged("gone") in events)
            await quiet(agent, red)
            assert len(red.seen(SUBSCRIBE)) == 2
            red.subscribed.clear()
            await gateway.notify(LIST_CHANGED, **missed(red))
            await eventually(lambda: len(updates(events)) == 2)
            assert set(updates(events)) == {ResourceUpdated("red", A), ResourceUpdated("red", B)}
            assert red.subscribed == {A, B}
            await quiet(agent, red)
            assert len(updates(events)) == 2
            assert not any(isinstance(event, Disconnected) for event in events)


@pytest.mark.rule("computer.resources.agent.unsubscribe")
@pytest.mark.parametrize("ended", [None, SERVER])
async def test_a_subscription_ended_by_unsubscribing_another_to_the_same_resource_is_renewed(
    ended: str | None,
) -> None:
    """With and without `server` are two to the application; to the Computer they may be one."""
    other = SERVER if ended is None else None
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            events = watched(agent)
            for server in (None, SERVER):
                await agent.subscribe_resource("red", A, server=server)
            await agent.subscribe_resource("red", B)
            await agent.unsubscribe_resource("red", A, server=ended)
            await eventually(lambda: len(red.seen(SUBSCRIBE)) == 4 and red.subscribed == {A, B})
            assert red.seen(SUBSCRIBE)[-1].get("serverId") == other
            assert set(agent.subscriptions()) == {Subscription("red", A, other), Subscription("red", B)}
            await eventually(lambda: updates(events) == [ResourceUpdated("red", A, other)])
            await agent.unsubscribe_resource("red", A, server=other)
            await quiet(agent, red)
            assert red.subscribed == {B}


@pytest.mark.rule("answers.resources.subscribers.query")
async def test_a_document_subscription_is_renewed_after_unsubscribing_another_query() -> None:
    """The query says how the document is shown: to the Computer it is one subscription."""
    shown = "dpe://h/d/pages/0"
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            events = watched(agent)
            for uri in (f"{shown}?format=markdown", f"{shown}?format=text", "table://t?row=1", "table://t?row=2"):
                await agent.subscribe_resource("red", uri)
            await agent.unsubscribe_resource("red", f"{shown}?format=text")
            await agent.unsubscribe_resource("red", "table://t?row=2")
            await eventually(lambda: ResourceUpdated("red", f"{shown}?format=markdown") in events)
            await quiet(agent, red)
            asked = [data["payload"]["params"]["uri"] for data in red.seen(SUBSCRIBE)]
            assert asked[4:] == [f"{shown}?format=markdown"]
            assert len(updates(events)) == 1


@pytest.mark.rule("computer.resources.agent.unsubscribe")
async def test_what_is_renewed_while_it_is_unsubscribed_from_is_ended() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            await agent.subscribe_resource("red", A)
            subscribe, may_answer = gateway.answers[SUBSCRIBE], asyncio.Event()

            async def slowly(data: JsonObject) -> Any:
                await may_answer.wait()
                return await subscribe(data)

            gateway.answers[SUBSCRIBE] = slowly
            gateway.cut()
            await quiet(agent, red)
            await agent.unsubscribe_resource("red", A)
            may_answer.set()
            await eventually(lambda: len(red.seen(UNSUBSCRIBE)) == 2)
            assert (red.subscribed, agent.subscriptions()) == (set(), ())
