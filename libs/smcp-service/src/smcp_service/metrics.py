"""Counts for Prometheus at `/metrics`, which collects them on the event loop.

The histogram is ours: those of OpenTelemetry and of Prometheus's client cost several times as much for each call.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from smcp_service.telemetry import OUTCOMES, recorder

Read = Callable[[], float | Mapping[str, float] | Mapping[tuple[str, ...], float]]
"""Called at each collection, so cheap and without waiting: a number, or numbers by the value of a label, or of some."""
Label = str | tuple[str, ...]
Family = GaugeMetricFamily | CounterMetricFamily


BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class _Tally:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    exemplars: dict[int, tuple[str, float, float]] = field(default_factory=dict)
    """By bucket: the last trace that was recorded, its seconds, and when (unix time)."""
    total: float = 0.0


class Durations:
    """Made by `Metrics.durations`. Each combination of the labels' values is kept."""

    def __init__(self, name: str, description: str, labels: tuple[str, ...]) -> None:
        self._name = name
        self._description = description
        self._labels = labels
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

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._description, labels=self._labels, unit="seconds")
        for values, tally in self._tallies.items():
            buckets: list[Any] = []
            for at, (bound, count) in enumerate(zip((*BOUNDS, float("inf")), accumulate(tally.buckets), strict=True)):
                exemplar = tally.exemplars.get(at)
                shown = () if exemplar is None else (Exemplar({"trace_id": exemplar[0]}, *exemplar[1:]),)
                buckets.append((str(bound).replace("inf", "+Inf"), count, *shown))
            family.add_metric(values, buckets, tally.total)
        return family


class Metrics(Collector):
    def __init__(self) -> None:
        self._families: list[Callable[[], Family | HistogramMetricFamily]] = []
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)
        self.counter("smcp_telemetry_spans", "Spans that were to be exported", _span_outcomes, label="outcome")

    def collect(self) -> Iterator[Family | HistogramMetricFamily]:
        return (family() for family in self._families)

    def scraped(self, accept: str = "") -> tuple[bytes, str]:
        """What Prometheus gets, and its content type: OpenMetrics with exemplars if `accept` (the header) asks so."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # it compares versions that are not numbers
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def gauge(self, name: str, description: str, read: Read, *, unit: str = "", label: Label = "") -> None:
        """Something that goes up and down; with `label`, one for each of its values. The name ends with `unit`."""
        self._observe(GaugeMetricFamily, name, description, read, unit, label)

    def counter(self, name: str, description: str, read: Read, *, unit: str = "", label: Label = "") -> None:
        """Something that only rises; with `label`, one for each of its values. The name ends with `unit`."""
        self._observe(CounterMetricFamily, name, description, read, unit, label)

    def durations(self, name: str, description: str, *labels: str) -> Durations:
        """How long something takes, by labels whose values come from a small, closed set."""
        durations = Durations(name, description, labels)
        self._families.append(durations.family)
        return durations

    def _observe(self, kind: type[Family], name: str, description: str, read: Read, unit: str, label: Label) -> None:
        def family() -> Family:
            value = read()
            labels = () if not label else (label,) if isinstance(label, str) else label
            found = kind(name, description, labels=labels, unit=unit)
            for of, count in value.items() if isinstance(value, Mapping) else [((), value)]:
                found.add_metric((of,) if isinstance(of, str) else of, count)
            return found

        self._families.append(family)


def _span_outcomes() -> Mapping[str, float]:
    return dict.fromkeys(OUTCOMES, 0.0) if (spans := recorder()) is None else spans.outcomes()
