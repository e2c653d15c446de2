"""The span of a call to an MCP server: one, named after the tool, continued by the server."""

import asyncio
import json
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.errors import ServerDied
from smcp_computer.mcp.transports import Limits, connect
from smcp_testing.mcp_servers import configs
from smcp_testing.otlp_process import otlp_receiver
from smcp_testing.waiting import eventually

LABELS = {"smcp.req_id": "r1", "smcp.office": "lab"}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # a process has one tracer provider for good; the tracer of these calls alone is replaced here
    monkeypatch.setattr("smcp_computer.mcp.session.tracer", provider.get_tracer("smcp_computer.mcp"))
    monkeypatch.setattr("smcp_computer.mcp.session.recorder", lambda: True)
    return exporter


def spans_of_calls(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if "call" in span.name]


@pytest.fixture
def tracer() -> Tracer:
    return TracerProvider().get_tracer("test")


async def test_a_call_is_one_client_span_and_the_server_gets_its_traceparent(
    exporter: InMemorySpanExporter, tracer: Tracer
) -> None:
    config = parse_config(json.dumps({"box": configs.stdio()})).servers["box"]
    server = await InputResolver({}, {}).resolve(config)
    async with connect(server, negotiation="auto", limits=Limits(), notify=lambda event: None) as connection:
        with tracer.start_as_current_span("process tool_call") as parent:
            result = await connection.call("trace", {}, timeout=10, labels=LABELS)
            failed = await connection.call("fail", {}, timeout=10, labels=LABELS)
    assert failed["isError"]
    first, second = spans_of_calls(exporter)
    assert first.name == "tools/call trace"
    assert first.kind is SpanKind.CLIENT
    assert first.parent is not None
    assert first.parent.span_id == parent.get_span_context().span_id
    attributes = dict(first.attributes or {})
    assert attributes.pop("jsonrpc.request.id")
    assert attributes == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "network.transport": "pipe",
        "smcp.mcp_server": "box",
        "gen_ai.tool.name": "trace",
        "gen_ai.operation.name": "execute_tool",
        **LABELS,
    }
    assert first.context is not None
    expected = f"00-{first.context.trace_id:032x}-{first.context.span_id:016x}-"
    assert result["structuredContent"]["result"].startswith(expected)
    assert second.name == "tools/call fail"
    assert second.status.status_code is StatusCode.ERROR
    assert dict(second.attributes or {})["error.type"] == "tool_error"
    assert not first.status.description
    assert first.status.status_code is StatusCode.UNSET


async def test_a_cancelled_call_ends_its_span(
    exporter: InMemorySpanExporter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    server = parse_config(json.dumps({"box": configs.stdio(log=log)})).servers["box"]
    async with connect(server, negotiation="auto", limits=Limits(), notify=lambda event: None) as connection:
        pending = asyncio.create_task(connection.call("sleep", {"seconds": 60}, timeout=90, labels=LABELS))
        await eventually(log.exists)
        pending.cancel("timeout")
        await asyncio.wait([pending])
    (span,) = spans_of_calls(exporter)
    assert span.name == "tools/call sleep"
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "timeout"
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_a_server_that_dies_during_a_call_marks_its_span(exporter: InMemorySpanExporter) -> None:
    server = parse_config(json.dumps({"box": configs.stdio()})).servers["box"]
    async with connect(server, negotiation="auto", limits=Limits(), notify=lambda event: None) as connection:
        with pytest.raises(ServerDied):
            await connection.call("die", {}, timeout=10, labels=LABELS)
    (span,) = spans_of_calls(exporter)
    assert dict(span.attributes or {})["error.type"] == "connection_closed"
    assert span.status.status_code is StatusCode.ERROR


async def test_an_instrumented_servers_own_span_is_below_the_span_of_the_call(exporter: InMemorySpanExporter) -> None:
    async with otlp_receiver() as receiver:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "an-mcp-server"}
        config = parse_config(json.dumps({"box": configs.stdio("instrumented", env=env, fresh=True)})).servers["box"]
        server = await InputResolver({}, {}).resolve(config)
        async with connect(server, negotiation="auto", limits=Limits(), notify=lambda event: None) as connection:
            await connection.call("echo", {"text": "x"}, timeout=10, labels=LABELS)
            (called,) = spans_of_calls(exporter)
            assert called.context is not None
            (own,) = await receiver.wait_for(1, trace_id=f"{called.context.trace_id:032x}")
    assert (own["service"], own["kind"], own["name"]) == ("an-mcp-server", "SERVER", "tools/call echo")
    assert own["parent_span_id"] == f"{called.context.span_id:016x}"
