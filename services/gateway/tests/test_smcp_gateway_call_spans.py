"""What happens to a call on its way stands in its span: events, and the link of a cancel."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import NOT_RUN
from smcp_bus.ownership import MOVING
from smcp_proto.errors import Unavailable
from smcp_testing.gateway_world import connected, gateway_world, reply
from smcp_testing.leaving_gateway import OFFICE, RESULT, call
from smcp_testing.waiting import eventually


def spans_of(exported: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name == name]


def events(span: ReadableSpan) -> list[str]:
    """In order, each one once: on a busy machine there are more probes."""
    return list(dict.fromkeys(event.name for event in span.events))


async def test_a_repeat_a_probe_and_a_cancel_are_seen_at_the_call(
    nats_url: str, exported: InMemorySpanExporter
) -> None:
    probed = asyncio.Event()

    async def stubborn(verb: str, incoming: Incoming) -> Reply:
        if verb == "tool_call":
            await asyncio.Event().wait()
        probed.set()
        return reply({"unknown": []})

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", stubborn),
    ):
        await anna.join("agent", "anna", OFFICE)
        waiting: asyncio.Task[Any] = asyncio.create_task(anna.call("client:tool_call", {**call(1), "a2c_repeat": 5}))
        await asyncio.wait_for(probed.wait(), 30)
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r1"}) is None
        assert (await asyncio.wait_for(waiting, 30))["meta"] == {"a2c_cancelled": True}
        (called,) = await eventually(lambda: spans_of(exported, "client:tool_call"))
        (cancel,) = spans_of(exported, "server:tool_call_cancel")
    assert events(called) == ["smcp.repeat", "smcp.probe"]
    assert called.context is not None
    assert [link.context.span_id for link in cancel.links] == [called.context.span_id]


async def test_a_move_that_a_call_waits_for_is_an_event(nats_url: str, exported: InMemorySpanExporter) -> None:
    tries = 0

    async def moving(verb: str, incoming: Incoming) -> Reply:
        nonlocal tries
        if verb == "pending":
            return reply({"unknown": []})
        assert subjects.verb_of(incoming.subject) == "tool_call"
        tries += 1
        if tries <= 2:
            refusal = Unavailable("on its way", details={"may_have_run": False})
            return Reply(refusal.body().model_dump_json().encode(), {"Smcp-Error": "503", NOT_RUN: MOVING})
        return reply(RESULT)

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", moving),
    ):
        await anna.join("agent", "anna", OFFICE)
        assert await anna.call("client:tool_call", call(1)) == RESULT
        (called,) = await eventually(lambda: spans_of(exported, "client:tool_call"))
    assert [event for event in events(called) if event != "smcp.probe"] == ["smcp.not_run", "smcp.move"]


@pytest.mark.parametrize("size", [100, 3_000_000])
async def test_large_requests_and_answers_are_seen_to_come_in_chunks(
    nats_url: str, exported: InMemorySpanExporter, size: int
) -> None:
    async def echo(verb: str, incoming: Incoming) -> Reply:
        return reply({"content": [{"type": "text", "text": "x" * size}]})

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", echo),
    ):
        await anna.join("agent", "anna", OFFICE)
        await anna.call("client:tool_call", {**call(1), "params": {"text": "x" * size}})
        (called,) = await eventually(lambda: spans_of(exported, "client:tool_call"))
        (sent,) = [
            span for span in exported.get_finished_spans() if span.name.startswith("send ") and "tool_call" in span.name
        ]
    large = size > 1_000_000
    seen = [name for name in (*events(called), *events(sent)) if name != "smcp.probe"]  # of an answer that is slow
    assert seen == (["smcp.request_in_chunks", "smcp.answer_in_chunks"] if large else [])
