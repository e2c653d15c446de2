"""Counts for Prometheus at `/metrics`, and over OTLP where the standard `OTEL_*` variables ask for it.

Instruments are OpenTelemetry's; observable ones are read on the event loop at each collection. Durations are
counted by a histogram of ours: OpenTelemetry's costs several times as much for each call.
"""

import asyncio
import contextlib
import os
import sys
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, NoOpMeter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    MetricReader,
    MetricsData,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import get_tracer_provider
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Exemplar, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from smcp_service.telemetry import (
    OUTCOMES,
    RequestTracerProvider,
    metric_exporters,
    number_of,
    otlp_exporter,
    resource_of,
    value_of,
)

INTERVAL_MS: Final = 60_000.0
"""OpenTelemetry's default."""
LAST_EXPORT_S: Final = 5.0
"""How long the last export may take when a process ends (seconds)."""
_SCOPE: Final = "smcp"

Read = Callable[[], float | Mapping[str, float] | Mapping[tuple[str, ...], float]]
"""Called at each collection, so cheap and without waiting: a number, or numbers by the value of a label, or of some."""
Label = str | tuple[str, ...]


BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, in seconds; one more is for what took longer."""


class _Tally:
    __slots__ = ("buckets", "exemplars", "largest", "smallest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.exemplars: dict[int, tuple[str, float, float]] = {}
        """By bucket: the last trace that was recorded, its seconds, and when (unix time)."""
        self.total = 0.0
        self.smallest = float("inf")
        self.largest = 0.0


class Durations:
    """Made by `Metrics.durations`. Each combination of the labels' values is kept."""

    def __init__(self, name: str, description: str, labels: tuple[str, ...], *, since_ns: int) -> None:
        self._name = name
        self._description = description
        self._labels = labels
        self._since_ns = since_ns
        self._tallies: dict[tuple[str, ...], _Tally] = {}

    def add(self, seconds: float, *values: str, trace_id: str = "") -> None:
        """`trace_id`: of a trace that is recorded, as 32 hex digits."""
        tally = self._tallies.get(values)
        if tally is None:
            tally = self._tallies[values] = _Tally()
        bucket = bisect_left(BOUNDS, seconds)
        tally.buckets[bucket] += 1
        if trace_id:
            tally.exemplars[bucket] = (trace_id, seconds, time.time())
        tally.total += seconds
        if seconds < tally.smallest:
            tally.smallest = seconds
        if seconds > tally.largest:
            tally.largest = seconds

    def family(self) -> HistogramMetricFamily:
        """All until now for Prometheus, with exemplars: OpenTelemetry's exporter drops those."""
        family = HistogramMetricFamily(self._name, self._description, labels=self._labels, unit="seconds")
        for values, tally in self._tallies.items():
            buckets: list[Any] = []
            for at, (bound, count) in enumerate(zip((*BOUNDS, float("inf")), accumulate(tally.buckets), strict=True)):
                exemplar = tally.exemplars.get(at)
                shown = () if exemplar is None else (Exemplar({"trace_id": exemplar[0]}, *exemplar[1:]),)
                buckets.append((str(bound).replace("inf", "+Inf"), count, *shown))
            family.add_metric(values, buckets, tally.total)
        return family

    def collected(self, now_ns: int) -> Metric:
        """All until now (unix time in ns), as OpenTelemetry's data."""
        points = [
            HistogramDataPoint(
                attributes=dict(zip(self._labels, values, strict=True)),
                start_time_unix_nano=self._since_ns,
                time_unix_nano=now_ns,
                count=sum(tally.buckets),
                sum=tally.total,
                bucket_counts=tuple(tally.buckets),
                explicit_bounds=BOUNDS,
                min=tally.smallest,
                max=tally.largest,
            )
            for values, tally in self._tallies.items()
        ]
        return Metric(self._name, self._description, "s", Histogram(points, AggregationTemporality.CUMULATIVE))


class Metrics:
    """The metrics of this process. Made by `open_metrics`; without a provider they are not collected."""

    def __init__(self) -> None:
        self.meter: Meter = NoOpMeter(_SCOPE)
        self.registry: CollectorRegistry | None = None
        """None: metrics are off."""
        self._durations: list[Durations] = []
        self.collector: Collector = _DurationsCollector(self._durations)
        self._since_ns = time.time_ns()

    def scraped(self, accept: str = "") -> tuple[bytes, str]:
        """What Prometheus gets, and its content type: OpenMetrics with exemplars if `accept` (the header) asks so."""
        assert self.registry is not None
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # it compares versions that are no numbers
            encode, content_type = choose_encoder("")
        return encode(self.registry), content_type

    def gauge(self, name: str, description: str, read: Read, *, unit: str = "1", label: Label = "") -> None:
        """Something that goes up and down; with `label`, one for each of its values."""
        self.meter.create_observable_gauge(name, [_observing(read, label)], unit, description)

    def counter(self, name: str, description: str, read: Read, *, unit: str = "1", label: Label = "") -> None:
        """Something that only rises; with `label`, one for each of its values."""
        self.meter.create_observable_counter(name, [_observing(read, label)], unit, description)

    def durations(self, name: str, description: str, *labels: str) -> Durations:
        """How long something takes, by labels whose values come from a small, closed set."""
        durations = Durations(name, description, labels, since_ns=self._since_ns)
        self._durations.append(durations)
        return durations

    def completed(self, data: MetricsData) -> MetricsData:
        now = time.time_ns()
        counted = [durations.collected(now) for durations in self._durations]
        # A scope of its own: of two of one name the exporter sends one.
        scope = ScopeMetrics(InstrumentationScope(f"{_SCOPE}.durations"), counted, schema_url="")
        return MetricsData([replace(of, scope_metrics=[*of.scope_metrics, scope]) for of in data.resource_metrics])


class _DurationsCollector(Collector):
    def __init__(self, durations: Sequence[Durations]) -> None:
        self._durations = durations

    def collect(self) -> Iterator[HistogramMetricFamily]:
        return (durations.family() for durations in self._durations)


@asynccontextmanager
async def open_metrics(service: str, *, environ: Mapping[str, str] | None = None) -> AsyncIterator[Metrics]:
    """Count while the body runs; where OTLP is asked for, what was counted is exported a last time at the end."""
    environ = os.environ if environ is None else environ
    metrics = Metrics()
    if value_of(environ, "OTEL_SDK_DISABLED") == "true":
        yield metrics
        return
    metrics.registry = CollectorRegistry()
    ProcessCollector(registry=metrics.registry)
    metrics.registry.register(metrics.collector)
    readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False, registry=metrics.registry)]
    pushed = InMemoryMetricReader() if "otlp" in metric_exporters(environ) else None
    if pushed is not None:
        readers.append(pushed)
    provider = MeterProvider(readers, resource=resource_of(service), shutdown_on_exit=False)
    metrics.meter = provider.get_meter(_SCOPE)
    with _span_outcomes() as outcomes:
        metrics.counter("smcp_telemetry_spans", "Spans that were to be exported", outcomes, label="outcome")
        try:
            if pushed is None:
                yield metrics
            else:
                async with _exporting(metrics, pushed, environ):
                    yield metrics
        finally:
            provider.shutdown()


@contextlib.contextmanager
def _span_outcomes() -> Iterator[Read]:
    """What became of the process's spans. Of several services in one process the first one counts them."""
    traced = get_tracer_provider()
    if not isinstance(traced, RequestTracerProvider) or traced.is_counted:
        yield lambda: dict.fromkeys(OUTCOMES, 0.0)
        return
    traced.is_counted = True
    try:
        yield traced.outcomes
    finally:
        traced.is_counted = False


def _observing(read: Read, label: Label) -> Callable[[CallbackOptions], list[Observation]]:
    labels = (label,) if isinstance(label, str) else label

    def observe(_: CallbackOptions) -> list[Observation]:
        value = read()
        if not isinstance(value, Mapping):
            return [Observation(value)]
        return [
            Observation(count, dict(zip(labels, (of,) if isinstance(of, str) else of, strict=True)))
            for of, count in value.items()
        ]

    return observe


@asynccontextmanager
async def _exporting(metrics: Metrics, reader: InMemoryMetricReader, environ: Mapping[str, str]) -> AsyncIterator[None]:
    exporter = otlp_exporter(environ, "METRICS")
    interval_ms = number_of(environ, "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_MS, least=1.0, most=sys.float_info.max)

    async def export() -> None:
        data = reader.get_metrics_data()  # here, on the loop: what is observed belongs to it
        if data is not None:
            await asyncio.to_thread(exporter.export, metrics.completed(data))

    async def run() -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await export()

    task = asyncio.create_task(run(), name="metrics")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_EXPORT_S):
                await export()
        exporter.shutdown()
