"""Metrics: at `/metrics` for Prometheus."""

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, TraceFlags
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from smcp_service.health import Readiness, serve_health
from smcp_service.metrics import BOUNDS, Durations, Metrics
from smcp_service.settings import ServiceSettings
from smcp_service.tracer_provider import BoundedBatchSpanProcessor, RequestTracerProvider, sampler_from


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_metrics_show_the_values_at_the_time_of_the_scrape() -> None:
    waiting = [3]
    metrics = Metrics()
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
    durations = Durations("name", "text", ("of",))
    for each in seconds:
        durations.add(each, "all")
    found = {(each.name, each.labels.get("le")): each.value for each in durations.family().samples}
    if not seconds:
        assert not found
        return
    assert found["name_seconds_count", None] == len(seconds)
    assert found["name_seconds_sum", None] == pytest.approx(sum(seconds))
    for bound in BOUNDS:
        assert found["name_seconds_bucket", str(bound)] == sum(each <= bound for each in seconds)


def test_what_became_of_the_spans_of_the_process_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = RequestTracerProvider(sampler_from({}))
    traced.add_span_processor(BoundedBatchSpanProcessor(InMemorySpanExporter(), {}))
    traced.record(ReadableSpan("x", context=SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))))
    traced.force_flush()
    exported = "smcp_telemetry_spans_total", (("outcome", "exported"),)
    assert samples(Metrics().scraped()[0])[exported] == 0
    monkeypatch.setattr("smcp_service.telemetry.trace.get_tracer_provider", lambda: traced)
    assert samples(Metrics().scraped()[0])[exported] == 1
    traced.shutdown()


async def status_of(url: str, *, method: str = "GET") -> int:
    async with aiohttp.ClientSession() as http, http.request(method, url) as answer:
        return answer.status


async def test_metrics_are_served_beside_readiness_for_get_only() -> None:
    metrics = Metrics()
    async with serve_health(ServiceSettings(), Readiness(), metrics) as server:
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
    metrics = Metrics()
    async with serve_health(ServiceSettings(), Readiness(), metrics) as server:
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
    metrics = Metrics()
    async with serve_health(ServiceSettings(), Readiness(), metrics) as server:
        metrics.durations("asked", "Questions", "event").add(0.2, "list", trace_id=TRACE_ID)
        content_type, text = await scrape(server.url, accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert TRACE_ID not in text
    assert samples(text.encode())["asked_seconds_count", (("event", "list"),)] == 1
