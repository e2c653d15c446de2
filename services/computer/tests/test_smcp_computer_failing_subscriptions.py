"""Subscriptions that an MCP server ends, refuses or never answers are requested again and delay no others."""

import asyncio
from functools import partial

import pytest

from smcp_computer.mcp import resources
from smcp_computer.mcp.errors import NotSubscribable
from smcp_computer.mcp.events import ResourceSubscribed, ResourcesUnsubscribed
from smcp_proto.backoff import Backoff
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_servers import OTHER, WINDOW, running
from smcp_testing.waiting import eventually

HOST = "com.example.desk"
THIRD = f"window://{HOST}/2"
REFUSED = "does not announce changes of a resource"


@pytest.mark.rule("answers.desktop.again")
async def test_a_subscription_omitted_by_the_next_stream_ends_and_is_requested_again() -> None:
    async with running(desk=configs.lean("2026", host=HOST, windows=2, most=1)) as servers:
        servers.upstream.want("desk", [OTHER])
        await eventually(lambda: servers.upstream.subscribed("desk") == {OTHER})
        servers.upstream.want("desk", [WINDOW, OTHER])
        await eventually(lambda: servers.upstream.subscribed("desk") == {WINDOW})
        await servers.heard_of(ResourcesUnsubscribed("desk", frozenset({OTHER})))
        servers.heard.clear()
        await servers.tell("most", count=2)
        servers.upstream.want("desk", [WINDOW, OTHER])
        await eventually(lambda: servers.upstream.subscribed("desk") == {WINDOW, OTHER})
        await servers.agreed(WINDOW, OTHER)
        await servers.heard_of(ResourceSubscribed("desk", OTHER))


@pytest.mark.rule("answers.desktop.again")
async def test_a_subscription_omitted_by_a_reopened_stream_ends_and_can_be_requested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources, "Backoff", partial(Backoff, 0.05))
    async with running(desk=configs.lean("2026", host=HOST, windows=2)) as servers:
        servers.upstream.want("desk", [WINDOW])
        await servers.upstream.hold("alice", "desk", OTHER)
        await eventually(lambda: servers.upstream.subscribed("desk") == {WINDOW, OTHER})
        await servers.tell("most", count=1)
        await servers.tell("end")
        await eventually(lambda: servers.upstream.subscribed("desk") == {WINDOW})
        with pytest.raises(NotSubscribable):
            await servers.upstream.hold("bob", "desk", OTHER)
        await servers.tell("most", count=2)
        await servers.upstream.hold("bob", "desk", OTHER)
        assert servers.upstream.holders("desk", OTHER) == {"alice", "bob"}
        assert servers.upstream.subscribed("desk") == {WINDOW, OTHER}


@pytest.mark.rule("answers.desktop.again")
async def test_a_refused_subscription_is_asked_for_again_once_the_list_changed(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = {WINDOW: "subscribe_refuse"}
    async with world(nats_url, desk=configs.context("2025", windows=1, misbehave=refusing)) as here:
        await eventually(lambda: REFUSED in caplog.text)
        await here.tell("desk", "misbehave", uri=WINDOW, how="")
        await here.tell("desk", "put", uri="note://1")
        await eventually(lambda: here.computer.resources.subscriptions.subscribed("desk") == {WINDOW})


async def test_an_unanswered_subscription_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_computer.mcp.resources.ONE_OF_MANY_S", 120.0)
    async with running(desk=configs.context("2025", windows=3, misbehave={WINDOW: "never"})) as servers:
        servers.upstream.want("desk", [WINDOW, OTHER])
        await eventually(lambda: servers.upstream.subscribed("desk") == {OTHER})
        await servers.heard_of(ResourceSubscribed("desk", OTHER))
        async with asyncio.timeout(60):
            await servers.upstream.hold("alice", "desk", THIRD)
        servers.upstream.release("alice", "desk", THIRD)
        await servers.agreed(OTHER)


async def test_cancelling_a_subscription_leaves_other_unsubscribe_requests_alone() -> None:
    async with running(desk=configs.context("2025", windows=2)) as servers:
        await servers.upstream.hold("alice", "desk", WINDOW)
        servers.upstream.release("alice", "desk", WINDOW)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await servers.upstream.hold("alice", "desk", OTHER)
        await servers.agreed()
        assert servers.upstream.holders("desk", OTHER) == frozenset()
