"""Streams of changes (`subscriptions/listen` of 2026-07-28) that end are opened again, with growing pauses."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.mcp import resources
from smcp_computer.mcp.events import ResourceUpdated, ServerEvent
from smcp_computer.mcp.session import ServerConnection
from smcp_computer.mcp.transports import Limits, connect
from smcp_computer.outbox import DESKTOP
from smcp_proto.backoff import Backoff
from smcp_testing.computer_office import NAME, World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

HOST = "com.example.lean"
WINDOW, OTHER = f"window://{HOST}/0", f"window://{HOST}/1"
MIB = 1024 * 1024


async def shown(here: World) -> list[str]:
    """The windows of the desktop, without their contents."""
    return [window.partition("\n")[0] for window in (await here.ask("get_desktop"))["desktops"]]


@asynccontextmanager
async def connection(
    updated: Callable[[str], None] = lambda uri: None, **server: Any
) -> AsyncIterator[ServerConnection]:
    config = parse_config(json.dumps({"servers": {"one": configs.lean("2026", **server)}}))

    def notify(event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated):
            updated(event.uri)

    async with connect(
        config.servers["one"], negotiation="auto", limits=Limits(max_message=MIB), notify=notify
    ) as opened:
        yield opened


async def listens(opened: ServerConnection) -> list[float]:
    """When the server was asked for each stream, in seconds."""
    result = await opened.call("listens", {}, timeout=30)
    times: list[float] = json.loads(result["content"][0]["text"])
    return times


async def at_least(count: int, opened: ServerConnection) -> list[float]:
    async def asked() -> list[float]:
        times = await listens(opened)
        return times if len(times) >= count else []

    return await eventually(asked)


@pytest.mark.parametrize("unacknowledged", [False, True])
async def test_a_stream_that_ends_as_it_begins_is_opened_again(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, unacknowledged: bool
) -> None:
    monkeypatch.setattr(resources, "Backoff", partial(Backoff, 0.1))
    server = configs.lean("2026", end_streams=1, unacknowledged=unacknowledged)
    async with world(nats_url, one=server) as here:
        await eventually(lambda: here.computer.resources.index.is_listed("one"))
        assert await shown(here) == []
        await here.tell("one", "put", uri=WINDOW)

        async def is_shown() -> bool:
            return await shown(here) == [WINDOW]

        await eventually(is_shown)
        await eventually(lambda: here.computer.resources.subscriptions.subscribed("one") == {WINDOW})
        await eventually(lambda: not {each.key.verb for each in here.computer.outbox.waiting})
        here.heard.clear()
        await here.tell("one", "update", uri=WINDOW, text="new")
        await eventually(lambda: {"computer": NAME} in here.told(DESKTOP))


async def test_a_stream_that_ends_unacknowledged_drops_no_subscription(nats_url: str) -> None:
    server = configs.lean("2026", windows=1, end_streams=2, unacknowledged=True)
    async with world(nats_url, one=server) as here:
        await eventually(lambda: here.computer.resources.subscriptions.subscribed("one") == {WINDOW}, timeout=30)
        assert await here.tell("one", "subscribed") == [WINDOW]


async def test_the_backoff_of_ending_streams_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "Backoff", partial(Backoff, 0.02))
    async with connection(end_streams=-1) as opened:
        times = await at_least(7, opened)
    # six pauses, each at least half of its step
    assert times[6] - times[0] >= 0.01 * (1 + 2 + 4 + 8 + 16 + 32)


async def test_a_long_lived_stream_resets_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "Backoff", partial(Backoff, 0.02))
    monkeypatch.setattr(resources, "STEADY_S", 0.0)
    async with connection(end_streams=-1) as opened:
        await at_least(13, opened)  # with pauses that grow the last one would be half a minute


async def test_subscribing_during_a_pause_reopens_the_stream_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "Backoff", partial(Backoff, 3600.0))
    async with connection(windows=2, end_streams=1) as opened:
        await at_least(1, opened)
        assert opened.resources is not None
        await opened.resources.subscribe(WINDOW)
        await opened.resources.subscribe(OTHER)
        result = await opened.call("subscribed", {}, timeout=30)
        assert json.loads(result["content"][0]["text"]) == [WINDOW, OTHER]


async def test_updates_on_a_replaced_stream_are_still_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources, "DRAIN_S", 30.0)
    updated: list[str] = []
    async with connection(updated.append, windows=2, late=True) as opened:
        assert opened.resources is not None
        await opened.resources.subscribe(WINDOW)
        await opened.resources.subscribe(OTHER)
        await eventually(lambda: updated == [WINDOW])


async def test_a_replaced_stream_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "DRAIN_S", 0.05)
    async with connection(windows=1) as opened:
        assert opened.resources is not None
        await opened.resources.subscribe(WINDOW)
        await opened.resources.unsubscribe(WINDOW)

        async def is_ended() -> bool:
            result = await opened.call("subscribed", {}, timeout=30)
            return bool(json.loads(result["content"][0]["text"]) == [])

        await eventually(is_ended)
