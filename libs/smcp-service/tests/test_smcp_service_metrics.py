"""Metrics: at `/metrics` for Prometheus, and over OTLP where the standard variables ask for it."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import Histogram
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, TraceFlags
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from smcp_service.health import Readiness, serve_health
from smcp_service.metrics import BOUNDS, Durations, Metrics, open_metrics
from smcp_service.telemetry import BoundedBatchSpanProcessor, RequestTracerProvider, sampler_from

NOTHING: dict[str, str] = {}


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_metrics_show_the_values_at_the_time_of_the_scrape() -> None:
    waiting = [3]
    async with open_metrics("test", environ=NOTHING) as metrics:
        metrics.gauge("waiting", "Who waits", lambda: waiting[0])
        metrics.gauge("members", "Who is there", lambda: {"agent": 1, "computer": 2}, label="role")
        metrics.counter("renewals", "Those that succeeded", lambda: 7)
        took = metrics.durations("asked", "Questions", "event", "outcome")
        took.add(0.2, "list", "ok")
        took.add(0.3, "list", "ok")
        took.add(99, "list", "503")
        told = samples(metrics.scraped()[0])
        assert told["waiting", ()] == 3
        assert told["members", (("role", "computer"),)] == 2
        assert told["renewals_total", ()] == 7
        ok = (("event", "list"), ("outcome", "ok"))
        assert told["asked_seconds_count", ok] == 2
        assert told["asked_seconds_sum", ok] == pytest.approx(0.5)
        assert told["asked_seconds_bucket", (ok[0], ("le", "0.25"), ok[1])] == 1
        assert told["asked_seconds_bucket", (ok[0], ("le", "0.5"), ok[1])] == 2
        failed = (("event", "list"), ("outcome", "503"))
        assert told["asked_seconds_bucket", (failed[0], ("le", "60.0"), failed[1])] == 0
        assert told["asked_seconds_bucket", (failed[0], ("le", "+Inf"), failed[1])] == 1
        waiting[0] = 0
        assert samples(metrics.scraped()[0])["waiting", ()] == 0


@given(st.lists(st.floats(0, 1000), max_size=30))
def test_each_duration_counts_in_its_bucket_and_all_larger_ones(seconds: list[float]) -> None:
    durations = Durations("name", "text", ("of",), since_ns=0)
    for each in seconds:
        durations.add(each, "all")
    data = durations.collected(1).data
    assert isinstance(data, Histogram)
    if not seconds:
        assert not data.data_points
        return
    (point,) = data.data_points
    assert point.count == len(seconds)
    assert point.sum == pytest.approx(sum(seconds))
    assert (point.min, point.max) == (min(seconds), max(seconds))
    for index, bound in enumerate(BOUNDS):
        assert sum(point.bucket_counts[: index + 1]) == sum(each <= bound for each in seconds)


async def test_services_in_one_process_count_its_spans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = RequestTracerProvider(sampler_from({}))
    traced.add_span_processor(BoundedBatchSpanProcessor(InMemorySpanExporter(), {}))
    traced.record(ReadableSpan("x", context=SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))))
    traced.force_flush()
    monkeypatch.setattr("smcp_service.metrics.get_tracer_provider", lambda: traced)
    exported = "smcp_telemetry_spans_total", (("outcome", "exported"),)
    for _ in range(2):
        async with open_metrics("one", environ=NOTHING) as one, open_metrics("two", environ=NOTHING) as two:
            assert [samples(each.scraped()[0])[exported] for each in (one, two)] == [1, 0]
    traced.shutdown()


async def status_of(url: str, *, method: str = "GET") -> int:
    async with aiohttp.ClientSession() as http, http.request(method, url) as answer:
        return answer.status


async def test_metrics_are_served_beside_readiness_for_get_only() -> None:
    async with (
        open_metrics("test", environ=NOTHING) as metrics,
        serve_health(Readiness(), "127.0.0.1", 0, None, metrics) as server,
    ):
        assert await status_of(f"{server.url}/metrics") == 200
        assert await status_of(f"{server.url}/metrics", method="POST") == 405


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
TRACE_ID = "0123456789abcdef0123456789abcdef"


async def scrape(url: str, accept: str) -> tuple[str, str]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics", headers={"Accept": accept}) as answer:
        assert answer.status == 200
        return answer.headers["Content-Type"], await answer.text()


async def test_prometheus_gets_openmetrics_with_the_traces_of_recorded_requests() -> None:
    async with (
        open_metrics("test", environ=NOTHING) as metrics,
        serve_health(Readiness(), "127.0.0.1", 0, None, metrics) as server,
    ):
        metrics.counter("renewals", "Those that succeeded", lambda: 7)
        took = metrics.durations("asked", "Questions", "event")
        took.add(0.2, "list", trace_id=TRACE_ID)
        took.add(0.21, "list")
        took.add(99, "list")
        content_type, text = await scrape(server.url, PROMETHEUS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in openmetrics_families(text)}  # type: ignore[no-untyped-call]
    assert families["renewals"].type == "counter"
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for sample in families["asked_seconds"].samples
        if sample.exemplar is not None
    }
    ((bound, exemplar),) = exemplars.items()
    assert (bound, exemplar.labels, exemplar.value) == ("0.25", {"trace_id": TRACE_ID}, 0.2)


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain", "application/openmetrics-text;version=x.y", ";;,=,x"])
async def test_others_get_the_text_without_exemplars(accept: str) -> None:
    async with (
        open_metrics("test", environ=NOTHING) as metrics,
        serve_health(Readiness(), "127.0.0.1", 0, None, metrics) as server,
    ):
        metrics.durations("asked", "Questions", "event").add(0.2, "list", trace_id=TRACE_ID)
        content_type, text = await scrape(server.url, accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert TRACE_ID not in text
    assert samples(text.encode())["asked_seconds_count", (("event", "list"),)] == 1


async def test_with_the_sdk_disabled_nothing_is_exported_and_counting_still_works() -> None:
    async with (
        open_metrics("test", environ={"OTEL_SDK_DISABLED": "true"}) as metrics,
        serve_health(Readiness(), "127.0.0.1", 0, None, metrics) as server,
    ):
        count(metrics)
        assert await status_of(f"{server.url}/metrics") == 404


def count(metrics: Metrics) -> None:
    metrics.gauge("waiting", "Who waits", lambda: 3)
    metrics.durations("asked", "Questions", "event").add(0.2, "list")


@asynccontextmanager
async def collector() -> AsyncIterator[tuple[str, asyncio.Queue[ExportMetricsServiceRequest]]]:
    """Takes metrics over OTLP (HTTP): its URL, and what came."""
    came: asyncio.Queue[ExportMetricsServiceRequest] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        compressed = request.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b"
        came.put_nowait(ExportMetricsServiceRequest.FromString(gzip.decompress(body) if compressed else body))
        return web.Response(body=ExportMetricsServiceResponse().SerializeToString())

    app = web.Application()
    app.router.add_post("/v1/metrics", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", came
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("interval", ["200", "3600000"], ids=["every interval", "at the end"])
async def test_metrics_are_pushed_over_otlp_on_request(interval: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector() as (url, came), asyncio.timeout(20):
        variables = {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        async with open_metrics("test", environ={**variables, "OTEL_METRIC_EXPORT_INTERVAL": interval}) as metrics:
            count(metrics)
            early = [await came.get()] if interval == "200" else []
        late = await came.get()
    pushed = early[0] if early else late
    (of_resource,) = pushed.resource_metrics
    attributes = {each.key: each.value.string_value for each in of_resource.resource.attributes}
    assert attributes["service.name"] == "test"
    told = {metric.name: metric for scope in of_resource.scope_metrics for metric in scope.metrics}
    assert told["waiting"].gauge.data_points[0].as_int == 3
    assert told["asked"].histogram.data_points[0].count == 1


async def test_an_invalid_export_interval_is_logged_and_replaced_by_the_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with collector() as (url, came), asyncio.timeout(20):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{url}/v1/metrics")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "often")
        async with open_metrics("test") as metrics:
            count(metrics)
        await came.get()
        assert came.empty(), "only what was counted at the end"
