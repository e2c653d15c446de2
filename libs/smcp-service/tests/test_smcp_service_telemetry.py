"""Traces reach a real OTLP receiver in another process, and only when the standard variables ask for it."""

import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from smcp_service.otlp_spans import OtlpHttpSpanExporter, export_request
from smcp_service.telemetry import TRACE_ID_KEY, open_telemetry
from smcp_service.tracer_provider import BoundedBatchSpanProcessor, ContextIdGenerator, TraceSampler, sampler_from
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.otlp_process import otlp_receiver
from smcp_testing.service_process import ServiceProcess, service_process

SAMPLE = Path(__file__).with_name("sample_service.py")
TRACE_ID = "11112222333344445555666677778888"


@asynccontextmanager
async def traced_sample(**variables: str) -> AsyncIterator[ServiceProcess]:
    """The sample service, after it has recorded its spans and ended."""
    async with service_process(*born(SAMPLE, knows=COMMANDS), env={"SMCP_MODE": "spans", **variables}) as service:
        await service.logged("serving")
        service.signal(signal.SIGTERM)
        assert await service.exit_code() == 0
        yield service


def by_name(spans: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {span["name"]: span for span in spans}


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_spans_are_exported_over_http_when_an_endpoint_is_set(compression: str) -> None:
    async with otlp_receiver() as receiver:
        async with traced_sample(
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_EXPORTER_OTLP_COMPRESSION=compression
        ) as service:
            spans = by_name(await receiver.spans())

    assert set(spans) == {"outer", "inner"}
    assert spans["outer"]["trace_id"] == spans["inner"]["trace_id"] == TRACE_ID
    assert spans["outer"]["parent_span_id"] is None
    assert spans["inner"]["parent_span_id"] == spans["outer"]["span_id"]
    assert spans["outer"]["attributes"] == {"smcp.req_id": "r-1"}
    assert spans["outer"]["service"] == "sample"
    line = await service.logged("inside a span")
    assert (line["trace_id"], line["span_id"]) == (TRACE_ID, spans["inner"]["span_id"])


async def test_a_librarys_own_spans_begin_no_trace() -> None:
    async with otlp_receiver() as receiver:
        async with traced_sample(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_TRACES_SAMPLER="parentbased_always_on"):
            assert "without an id" not in by_name(await receiver.spans())


async def test_error_texts_are_not_exported() -> None:
    async with otlp_receiver() as receiver:
        async with traced_sample(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url):
            inner = by_name(await receiver.spans())["inner"]

    assert (inner["status"], inner["status_message"]) == ("ERROR", "")
    (event,) = inner["events"]
    assert event["name"] == "exception"
    assert event["attributes"] == {"exception.type": "ValueError", "exception.escaped": "False"}


async def test_the_endpoint_of_traces_alone_is_enough_and_names_come_from_the_variables() -> None:
    async with otlp_receiver() as receiver:
        async with traced_sample(
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{receiver.url}/v1/traces",
            OTEL_SERVICE_NAME="my-gateway",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test,service.name=ignored",
        ):
            spans = await receiver.spans()

    assert {span["service"] for span in spans} == {"my-gateway"}
    assert {span["resource"]["deployment.environment"] for span in spans} == {"test"}


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"},
    ],
)
async def test_nothing_is_exported_when_a_variable_says_so(variables: dict[str, str]) -> None:
    async with otlp_receiver() as receiver:
        async with traced_sample(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **variables):
            assert await receiver.spans() == []


async def test_a_receiver_that_does_not_answer_does_not_hold_the_process_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with traced_sample(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}") as service:
            assert await service.logged("the last spans could not be exported in time")


def test_spans_are_written_as_opentelemetry_writes_them() -> None:
    resource = Resource({"service.name": "sample"}, "https://schema")
    state = TraceState([("smcp", "10000")])
    above = SpanContext(7, 1 << 63, is_remote=True, trace_flags=TraceFlags(1))
    attributes: dict[str, Any] = {
        "text": "北京",
        "long": "x" * 70_000,
        "yes": True,
        "one": 1,
        "half": 0.5,
        "many": ("a", 2),
    }
    spans = [
        ReadableSpan(
            name=f"span {number}",
            context=SpanContext(7, number, is_remote=False, trace_flags=TraceFlags(1), trace_state=state),
            parent=above if number % 2 else None,
            resource=resource,
            attributes={**attributes, "number": number, "one": True} if number else {},
            events=[Event("asked", {"tries": number}, 5)] * number,
            links=[Link(above, {"why": "cancel"})] * number,
            kind=kind,
            status=Status(StatusCode.ERROR if number % 2 else StatusCode.UNSET),
            start_time=1 << 60,
            end_time=(1 << 60) + number,
            instrumentation_scope=InstrumentationScope(
                "sample", "1.0", f"https://schema/{number % 2}", {"of": number % 3}
            ),
        )
        for number, kind in enumerate(SpanKind)
    ]
    assert ExportTraceServiceRequest.FromString(export_request(resource, spans)) == encode_spans(spans)


def test_half_a_character_in_a_span_does_not_keep_the_others_back() -> None:
    context = SpanContext(7, 7, is_remote=False, trace_flags=TraceFlags(1))
    spans = [
        ReadableSpan(name=name, context=context, attributes={"said": name}, start_time=1, end_time=2)
        for name in ("a\ud800", "b")
    ]
    written = ExportTraceServiceRequest.FromString(export_request(Resource({}), spans))
    said = [
        (span.name, span.attributes[0].value.string_value) for span in written.resource_spans[0].scope_spans[0].spans
    ]
    assert said == [("a?", "a?"), ("b", "b")]


def test_an_integer_above_64_bits_in_a_span_is_written_as_text_and_keeps_nothing_back() -> None:
    context = SpanContext(7, 7, is_remote=False, trace_flags=TraceFlags(1))
    numbers = {"least": -(1 << 63), "most": (1 << 63) - 1, "above": 1 << 63, "below": -(1 << 63) - 1}
    span = ReadableSpan(name="a", context=context, attributes=numbers, start_time=1, end_time=2)
    written = ExportTraceServiceRequest.FromString(export_request(Resource({}), [span]))
    values = [each.value for each in written.resource_spans[0].scope_spans[0].spans[0].attributes]
    assert [each.int_value for each in values] == [-(1 << 63), (1 << 63) - 1, 0, 0]
    assert [each.string_value for each in values] == ["", "", str(1 << 63), str(-(1 << 63) - 1)]


def test_a_collector_that_is_away_is_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1.5")
    exporter = OtlpHttpSpanExporter(Resource({}))
    for _ in range(2):
        assert exporter.export(()) is SpanExportResult.FAILURE
    exporter.shutdown()
    (line,) = caplog.messages
    assert "Connection refused" in line


def test_opentelemetrys_http_exporter_posts_for_no_spans_and_through_the_request_method_of_its_session() -> None:
    """`OtlpHttpSpanExporter` rests on both. If this fails after an update: write its body where the exporter sends."""

    class Session(requests.Session):
        posted: ClassVar[list[tuple[str | bytes, str | bytes]]] = []

        def request(self, method: str | bytes, url: str | bytes, *args: Any, **more: Any) -> requests.Response:
            self.posted.append((method, url))
            answer = requests.Response()
            answer.status_code = 200
            return answer

    exporter = OTLPSpanExporter("http://collector/v1/traces", session=Session())
    assert exporter.export(()) is SpanExportResult.SUCCESS
    assert [(str(method).upper(), url) for method, url in Session.posted] == [("POST", "http://collector/v1/traces")]
    exporter.shutdown()  # type: ignore[no-untyped-call]


class Away(SpanExporter):
    """A collector that takes nothing until it is `back`."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.sizes: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.sizes.append(len(spans))
        self.back.wait(30)
        return SpanExportResult.SUCCESS


def test_while_a_collector_takes_nothing_few_spans_wait_and_the_others_are_counted_as_dropped() -> None:
    collector = Away()
    batches = BoundedBatchSpanProcessor(collector, {"OTEL_BSP_MAX_QUEUE_SIZE": "10"})
    span = ReadableSpan("x", context=SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1)))
    for _ in range(25):
        batches.on_end(span)
    assert batches.counts == {"exported": 0, "failed": 0, "dropped": 15}
    collector.back.set()
    batches.shutdown()  # type: ignore[no-untyped-call]
    assert batches.counts == {"exported": 10, "failed": 0, "dropped": 15}


@pytest.mark.parametrize(("size", "sizes"), [("4", [4, 4, 2]), ("11", [10])])
def test_the_size_of_a_batch_is_the_standard_variables_if_so_many_spans_may_wait(size: str, sizes: list[int]) -> None:
    collector = Away()
    collector.back.set()
    environ = {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": size}
    batches = BoundedBatchSpanProcessor(collector, environ)
    for _ in range(10):
        batches.on_end(ReadableSpan("x", context=SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))))
    batches.shutdown()  # type: ignore[no-untyped-call]
    assert collector.sizes == sizes


async def test_nothing_is_recorded_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    async with open_telemetry("x", per_s=0, slow_s=10) as provider:
        assert provider is None


def test_an_id_in_the_context_becomes_the_trace_id_if_it_is_a_legal_one() -> None:
    generator = ContextIdGenerator()
    for value, taken in ((5, True), (0, False), (-1, False), (1 << 128, False), ("5", False)):
        token = otel_context.attach(otel_context.set_value(TRACE_ID_KEY, value))
        try:
            assert (generator.generate_trace_id() == value) is taken
        finally:
            otel_context.detach(token)
    assert generator.generate_trace_id() != generator.generate_trace_id()


def decisions(
    environ: dict[str, str], trace_ids: list[int], *, parent: SpanContext | None = None, own: bool = False
) -> list[bool]:
    """Whether each of these traces would be sampled; `own`: nobody knows who set the parent's flag."""
    sampler = sampler_from(environ)
    decided = [sampler.decide(parent, is_untrusted=own)[0] for _ in trace_ids]
    if own:
        return decided
    context = otel_context.Context({TRACE_ID_KEY: 7})
    if parent is not None:
        context = set_span_in_context(NonRecordingSpan(parent), context)
    opened = [
        sampler.should_sample(context, trace_id, "x").decision is Decision.RECORD_AND_SAMPLE for trace_id in trace_ids
    ]
    assert len(set(decided)) == 2 or decided == opened
    return opened


def remote(*, sampled: bool) -> SpanContext:
    return SpanContext(7, 7, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED if sampled else 0))


RATIO = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_the_sampling_ratio_holds_for_any_caller_chosen_ids(sampler: str) -> None:
    """One id, a thousand times: a sampler that reads the id would keep all of them or none."""
    kept = decisions({**RATIO, "OTEL_TRACES_SAMPLER": sampler}, [1] * 1000)

    assert 300 < sum(kept) < 700


@given(st.integers(1, (1 << 128) - 1))
def test_a_child_follows_its_parents_sampling_decision(trace_id: int) -> None:
    assert decisions(RATIO, [trace_id] * 3, parent=remote(sampled=True)) == [True] * 3
    assert decisions(RATIO, [trace_id] * 3, parent=remote(sampled=False)) == [False] * 3


def test_an_untrusted_parents_sampling_flag_is_ignored() -> None:
    off = {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}

    assert decisions(off, [1], parent=remote(sampled=True)) == [True]
    assert decisions(off, [1], parent=remote(sampled=True), own=True) == [False]
    assert decisions({}, [1], parent=remote(sampled=False), own=True) == [True]
    assert 300 < sum(decisions(RATIO, [1] * 1000, parent=remote(sampled=True), own=True)) < 700


def test_a_rate_limit_bounds_the_traces_of_a_second_after_one_seconds_worth_at_once() -> None:
    now = [0.0]
    sampler = TraceSampler(1.0, per_s=5, clock=lambda: now[0])
    kept = []
    for second in range(4):
        now[0] = float(second)
        kept.append(sum(sampler.decide(None, is_untrusted=False)[0] for _ in range(100)))
    assert kept == [5, 5, 5, 5]
    now[0] = 100.0
    assert sum(sampler.decide(None, is_untrusted=False)[0] for _ in range(100)) == 5


@pytest.mark.parametrize(
    ("environ", "slow_s", "state"),
    [
        ({**RATIO, "OTEL_TRACES_SAMPLER_ARG": "0"}, 10.0, "smcp=10000"),
        ({**RATIO, "OTEL_TRACES_SAMPLER_ARG": "0"}, 0.25, "smcp=250"),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 10.0, None),
    ],
)
def test_a_dropped_trace_says_from_when_on_a_request_is_slow(
    environ: dict[str, str], slow_s: float, state: str | None
) -> None:
    is_sampled, found, _ = sampler_from(environ, slow_s=slow_s).decide(None, is_untrusted=False)
    assert not is_sampled
    assert (found or None) == state


@pytest.mark.parametrize(
    ("environ", "sampled"),
    [
        ({}, True),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, True),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, True),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, False),
        ({"OTEL_TRACES_SAMPLER": "no such thing"}, True),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, True),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "many"}, True),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, True),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, False),
    ],
)
def test_the_standard_samplers_are_known_and_an_unknown_value_is_the_default(
    environ: dict[str, str], sampled: bool
) -> None:
    assert decisions(environ, [1, 1 << 127]) == [sampled] * 2


def test_a_trace_id_is_propagated_as_not_random() -> None:
    """The W3C flag `random` would tell others that they may sample by the id."""
    provider = TracerProvider(id_generator=ContextIdGenerator(), shutdown_on_exit=False)
    with provider.get_tracer("x").start_as_current_span("x") as span:
        assert not span.get_span_context().trace_flags.random_trace_id
    provider.shutdown()
