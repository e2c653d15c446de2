"""How long things took, by what they were and how they ended: a histogram that costs a call next to nothing.

OpenTelemetry's own histogram takes tens of microseconds of CPU for each value; here a value is two additions. What is
counted becomes OpenTelemetry's data when it is collected.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
)

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, in seconds; one more is for what took longer."""


class _Tally:
    __slots__ = ("buckets", "largest", "smallest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self.smallest = float("inf")
        self.largest = 0.0


class Durations:
    """Made by `Metrics.durations`.

    Args:
        labels: the names of the labels. Their values must come from a small, closed set: each combination is kept.
    """

    def __init__(self, name: str, description: str, labels: tuple[str, ...], *, since_ns: int) -> None:
        self._name = name
        self._description = description
        self._labels = labels
        self._since_ns = since_ns
        self._tallies: dict[tuple[str, ...], _Tally] = {}

    def add(self, seconds: float, *values: str) -> None:
        """Something took so long; `values` are those of the labels, in their order."""
        tally = self._tallies.get(values)
        if tally is None:
            tally = self._tallies[values] = _Tally()
        tally.buckets[bisect_left(BOUNDS, seconds)] += 1
        tally.total += seconds
        if seconds < tally.smallest:
            tally.smallest = seconds
        if seconds > tally.largest:
            tally.largest = seconds

    def collected(self, now_ns: int) -> Metric:
        """All until now (unix time in ns), as OpenTelemetry's data."""
        return Metric(
            name=self._name,
            description=self._description,
            unit="s",
            data=Histogram(list(self._points(now_ns)), AggregationTemporality.CUMULATIVE),
        )

    def _points(self, now_ns: int) -> Iterable[HistogramDataPoint]:
        for values, tally in self._tallies.items():
            yield HistogramDataPoint(
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
