"""Joins, leaves and lists of members on NATS, whose requests name no trace: each is one of its own."""

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from smcp_testing.member_process import member_process
from smcp_testing.registry_world import registries
from smcp_testing.waiting import eventually

EVENTS = ("server:join_office", "server:list_room", "server:leave_office")


async def test_joins_lists_and_leaves_are_traces_of_their_own(nats_url: str, exported: InMemorySpanExporter) -> None:
    async with registries(nats_url, count=1), member_process(nats_url) as member:
        joined = await member.join("lab", "computer", "pc")
        await member.room("lab", "computer", "pc", after=joined.revision)
        await member.leave("lab", "computer", "pc")

        def roots() -> dict[str, ReadableSpan]:
            spans = [span for span in exported.get_finished_spans() if span.kind is SpanKind.CONSUMER]
            return {str((span.attributes or {}).get("smcp.event")): span for span in spans if span.parent is None}

        await eventually(lambda: set(EVENTS) <= set(roots()))
        found = roots()
    assert {event: found[event].name for event in EVENTS} == {
        event: f"process smcp.v1.{{office}}.server.computer.{{name}}.{event.removeprefix('server:')}"
        for event in EVENTS
    }
    assert len({span.context.trace_id for span in found.values() if span.context}) == len(found)
