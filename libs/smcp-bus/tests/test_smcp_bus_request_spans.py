"""Spans of requests that were not sampled: recorded when they end, if they failed or were slow."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from smcp_bus import subjects, tracing
from smcp_bus.callers import Caller
from smcp_bus.dispatch import Answer, Call, Dispatcher, Tracing
from smcp_bus.request_spans import MOST_EVENTS, RequestSpan, child_span
from smcp_proto.catalog import CATALOG
from smcp_proto.errors import NotFound, Unavailable
from smcp_service.tracer_provider import RequestTracerProvider, sampler_from
from smcp_testing.exported_spans import ReadableSpanExporter
from smcp_testing.profiles import scaled

ALICE = Caller(role="agent", office="lab", name="alice")
REQ_ID = "0123456789abcdef0123456789abcdef"
SUBJECT = subjects.client("lab", "pc", "tool_call")
NONE_SAMPLED = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
TOOL_FAILED = Answer(b'{"content":[],"isError":true}')


class Recorded:
    """What a process with a sampler of its own exports. `sampling` is what `OTEL_TRACES_SAMPLER…` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._exporter = InMemorySpanExporter()
        self.sampling(NONE_SAMPLED)

    def sampling(self, environ: dict[str, str], slow_s: float = 10.0) -> None:
        provider = RequestTracerProvider(sampler_from(environ, slow_s=slow_s))
        provider.add_span_processor(SimpleSpanProcessor(ReadableSpanExporter(self._exporter, provider.resource)))
        self._monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    @property
    def all_spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name.split(" smcp")[0]: span for span in self.all_spans}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


def tool_call(**fields: Any) -> dict[str, Any]:
    call = {"agent": "alice", "req_id": REQ_ID, "computer": "pc", "tool_name": "echo", "params": {}, "timeout": 5}
    return call | fields


async def dispatch(
    handler: Any, spans: Tracing | None, *, subject: str = "", headers: Mapping[str, str] | None = None, **fields: Any
) -> None:
    dispatcher = Dispatcher({"client:tool_call": handler}, tracing=spans)
    row = CATALOG["client:tool_call"]
    await dispatcher.dispatch(row, ALICE, tool_call(**fields), headers=headers or {}, subject=subject)


async def through_both(tool: Any, **fields: Any) -> dict[str, str]:
    """A call through a gateway and a Computer, in one process; gives the headers between them."""
    carried: dict[str, str] = {}
    at_gateway, at_computer = tracing.client_spans(), tracing.bus_spans()

    async def relay(request: Any, call: Call) -> Any:
        with tracing.sending(SUBJECT) as headers:
            carried.update(headers)
            answers: list[Any] = []

            async def answered(request: Any, call: Call) -> Any:
                answers.append(await tool(request, call))
                return answers[0]

            await asyncio.create_task(dispatch(answered, at_computer, subject=SUBJECT, headers=headers, **fields))
            if not answers:
                raise Unavailable("the Computer failed")
            return answers[0]

    await dispatch(relay, at_gateway, **fields)
    return carried


async def run_tool(request: Any, call: Call) -> Answer:
    with child_span(trace.get_tracer("test"), "tools/call", SpanKind.CLIENT, {"smcp.mcp_server": "box"}) as span:
        span.add_event("asked", {"tries": 1})
    return TOOL_FAILED


async def succeed(request: Any, call: Call) -> Answer:
    return Answer(b'{"content":[]}')


async def test_a_failed_call_that_was_not_sampled_has_all_its_spans_with_their_times(recorded: Recorded) -> None:
    headers = await through_both(run_tool)
    spans = recorded.spans
    assert set(spans) == {"client:tool_call", "send", "process", "tools/call"}
    chain = [spans[name] for name in ("client:tool_call", "send", "process", "tools/call")]
    contexts = [span.context for span in chain]
    assert [context.trace_id for context in contexts if context] == [int(REQ_ID, 16)] * 4
    assert chain[0].parent is None
    for above, below in pairwise(chain):
        assert above.context is not None
        assert below.parent is not None
        assert below.parent.span_id == above.context.span_id
        assert above.start_time is not None
        assert below.start_time is not None
        assert above.end_time is not None
        assert below.end_time is not None
        assert above.start_time <= below.start_time <= below.end_time <= above.end_time
    assert contexts[1] is not None
    assert headers["traceparent"] == f"00-{REQ_ID}-{contexts[1].span_id:016x}-00"
    assert [span.status.status_code for span in chain] == [
        StatusCode.ERROR, StatusCode.UNSET, StatusCode.ERROR, StatusCode.UNSET,
    ]  # fmt: skip
    assert dict(chain[0].attributes or {})["error.type"] == "tool_error"
    assert [(event.name, dict(event.attributes or {})) for event in chain[3].events] == [("asked", {"tries": 1})]


async def test_of_a_call_that_succeeds_nothing_is_recorded(recorded: Recorded) -> None:
    await through_both(succeed)
    assert not recorded.spans


async def test_a_slow_call_is_recorded(recorded: Recorded) -> None:
    recorded.sampling(NONE_SAMPLED, slow_s=0.001)

    async def slowly(request: Any, call: Call) -> Answer:
        await asyncio.sleep(0.002)
        return await succeed(request, call)

    await through_both(slowly)
    assert set(recorded.spans) == {"client:tool_call", "send", "process"}


async def test_a_refused_and_an_interrupted_call_are_recorded(recorded: Recorded) -> None:
    async def refuse(request: Any, call: Call) -> Answer:
        raise NotFound("no such Computer")

    await dispatch(refuse, tracing.client_spans())
    assert dict(recorded.spans["client:tool_call"].attributes or {})["error.type"] == "404"

    async def interrupt(request: Any, call: Call) -> Answer:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await dispatch(interrupt, tracing.client_spans(), req_id="f" * 32)
    last = recorded.spans["client:tool_call"]
    assert dict(last.attributes or {})["error.type"] == "cancelled"


@pytest.mark.parametrize(
    "sampling", [{"OTEL_TRACES_SAMPLER": "always_off"}, {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}]
)
async def test_where_nothing_is_to_be_sampled_failed_calls_are_not_recorded(
    recorded: Recorded, sampling: dict[str, str]
) -> None:
    recorded.sampling(sampling)
    await through_both(run_tool)
    assert not recorded.spans


async def test_a_computer_records_no_failure_in_a_trace_that_its_gateway_does_not_keep(recorded: Recorded) -> None:
    headers = {"traceparent": f"00-{REQ_ID}-{'b' * 16}-00"}
    await dispatch(run_tool, tracing.bus_spans(), subject=SUBJECT, headers=headers)
    assert not recorded.spans


async def test_an_application_that_does_not_record_is_linked_and_no_parent(recorded: Recorded) -> None:
    await dispatch(run_tool, tracing.client_spans(), traceparent=f"00-{'a' * 32}-{'b' * 16}-00")
    span = recorded.spans["client:tool_call"]
    assert span.parent is None
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == "a" * 32
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["b" * 16]


async def test_a_span_that_ends_after_its_failed_request_is_recorded(recorded: Recorded) -> None:
    left: list[RequestSpan] = []

    async def leave(request: Any, call: Call) -> Answer:
        span = trace.get_current_span()
        assert isinstance(span, RequestSpan)
        left.append(span.child("tools/call", SpanKind.CLIENT, {}))
        return TOOL_FAILED

    await dispatch(leave, tracing.client_spans())
    assert set(recorded.spans) == {"client:tool_call"}
    left[0].end()
    left[0].end()
    assert set(recorded.spans) == {"client:tool_call", "tools/call"}


async def test_events_in_memory_are_bounded(recorded: Recorded) -> None:
    async def fail(request: Any, call: Call) -> Answer:
        for number in range(1000):
            trace.get_current_span().add_event("again", {"number": number})
        return TOOL_FAILED

    await dispatch(fail, tracing.client_spans())
    assert len(recorded.spans["client:tool_call"].events) == MOST_EVENTS


async def test_among_many_calls_every_sampled_or_failed_one_has_one_whole_trace(recorded: Recorded) -> None:
    recorded.sampling({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.2"})
    count = scaled(ci=300, soak=10_000)
    failed = {f"{number:032x}" for number in range(1, count + 1) if number % 3 == 0}

    async def call(number: int) -> None:
        async def tool(request: Any, call: Call) -> Answer:
            await asyncio.sleep(0)
            if number % 15 == 0:
                raise NotFound("no such tool")
            return await (run_tool if number % 3 == 0 else succeed)(request, call)

        await through_both(tool, req_id=f"{number:032x}")

    await asyncio.gather(*(call(number) for number in range(1, count + 1)))
    traces: dict[str, list[ReadableSpan]] = {}
    for span in recorded.all_spans:
        assert span.context is not None
        traces.setdefault(f"{span.context.trace_id:032x}", []).append(span)
    assert failed <= set(traces)
    assert 0 < len(set(traces) - failed) < count - len(failed)
    for req_id, spans in traces.items():
        ids = {span.context.span_id for span in spans if span.context}
        assert len(ids) == len(spans)
        assert [span.name for span in spans if span.parent is None] == ["client:tool_call"]
        assert all(span.parent.span_id in ids for span in spans if span.parent is not None)
        assert len(spans) == 3 + (req_id in failed and int(req_id, 16) % 15 != 0)
