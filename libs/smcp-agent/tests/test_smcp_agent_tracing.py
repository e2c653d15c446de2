from collections.abc import Iterator
from typing import Any

import pytest
from mcp.server.context import CallNext, HandlerResult
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from smcp_agent import NotFound
from smcp_agent.mcp.resources import Context
from smcp_testing.bridged import ERAS, bridged
from smcp_testing.fake_gateway import agent_at, fake_gateway, tool

JsonObject = dict[str, Any]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """An application that is traced by a provider of its own: what that exports."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def only(exported: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in exported.get_finished_spans() if span.name == name]
    return span


@pytest.mark.rule("answers.traceparent")
async def test_a_call_of_a_traced_application_is_a_client_span_in_its_trace(exported: InMemorySpanExporter) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        with trace.get_tracer("app").start_as_current_span("app") as app:
            result = await agent.call_tool("red", "echo", {"secret": "x"}, req_id="r1")
        span = only(exported, "client:tool_call")
        assert span.kind is SpanKind.CLIENT
        assert span.parent is not None
        assert span.parent.span_id == app.get_span_context().span_id
        assert dict(span.attributes or {}) == {
            "smcp.event": "client:tool_call",
            "smcp.req_id": "r1",
            "smcp.office": "office",
            "smcp.computer": "red",
            "gen_ai.tool.name": "echo",
        }
        trace_id = trace.format_trace_id(app.get_span_context().trace_id)
        span_id = trace.format_span_id(span.get_span_context().span_id)  # type: ignore[union-attr]
        assert result.trace_id == trace_id
        assert gateway.seen("client:tool_call")[0]["traceparent"].startswith(f"00-{trace_id}-{span_id}-")


async def test_an_error_and_a_failing_tool_mark_the_span(exported: InMemorySpanExporter) -> None:
    replies: list[JsonObject] = [
        {"code": 404, "message": "secret", "details": {}},
        {"content": [{"type": "text", "text": "secret"}], "isError": True},
    ]

    async def answer(data: JsonObject) -> Any:
        return replies.pop(0)

    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        gateway.answers["client:tool_call"] = answer
        with pytest.raises(NotFound):
            await agent.call_tool("red", "echo")
        await agent.call_tool("red", "echo")
    spans = [span for span in exported.get_finished_spans() if span.name == "client:tool_call"]
    assert [(span.attributes or {})["error.type"] for span in spans] == ["404", "tool_error"]
    assert all(span.status.status_code is StatusCode.ERROR for span in spans)
    assert all(not span.events and "secret" not in span.to_json() for span in spans)


async def test_the_gateway_is_told_of_an_unsampled_trace_only_if_it_began_in_the_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        own = await agent.call_tool("red", "echo", req_id="a" * 32)
        with trace.get_tracer("app").start_as_current_span("app") as app:
            await agent.call_tool("red", "echo")
        first, second = gateway.seen("client:tool_call")
    assert "traceparent" not in first
    assert own.trace_id == "a" * 32
    trace_id = trace.format_trace_id(app.get_span_context().trace_id)
    assert second["traceparent"].startswith(f"00-{trace_id}-")
    assert not int(second["traceparent"][-2:], 16) & TraceFlags.SAMPLED


async def test_without_a_tracer_requests_carry_no_traceparent() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        await agent.call_tool("red", "echo")
        assert "traceparent" not in gateway.seen("client:tool_call")[0]


TRACED: Any = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-00"}


async def dropping(ctx: Context, call_next: CallNext) -> HandlerResult:
    """A tracer that drops the span of the client's request, as services drop what a library begins."""
    dropped = SpanContext(1, 1, is_remote=False)
    if "traceparent" in (ctx.meta or {}):
        dropped = SpanContext(int("c" * 32, 16), 1, is_remote=False)
    with trace.use_span(NonRecordingSpan(dropped)):
        return await call_next(ctx)


@ERAS
async def test_a_call_is_traced_unless_its_client_says_that_its_own_trace_is_not_sampled(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp.server.lowlevel.server.OpenTelemetryMiddleware", lambda: dropping)
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with bridged(gateway, era) as bridge:
            await bridge.client.call_tool("echo", {})
            await bridge.client.call_tool("echo", {}, meta=TRACED)
        untraced, traced = gateway.seen("client:tool_call")
    assert "traceparent" not in untraced
    assert traced["traceparent"].startswith(f"00-{'c' * 32}-")
    assert traced["traceparent"].endswith("-00")
