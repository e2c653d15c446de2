"""The tracer provider of a process that exports spans: which traces are kept, their ids, and the queue of spans.

`telemetry` imports it where spans are exported, since it brings OpenTelemetry's SDK along.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import SpanContext, TraceState, get_current_span

from smcp_service.telemetry import OUTCOMES, TRACE_ID_KEY, value_of, warn_of

STATE_KEY: Final = "smcp"
"""Of the trace state of a trace that is dropped: milliseconds from which on a request is slow."""
LONGEST_QUEUE: Final = 1_000_000.0


def resource_of(service: str) -> Resource:
    """The OpenTelemetry resource: named `service` unless the standard variables name it."""
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the name that the service gives itself.
    return Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())


class ContextIdGenerator(RandomIdGenerator):
    """Takes the id of a new trace from the context; random where there is no legal one."""

    def generate_trace_id(self) -> int:
        chosen = otel_context.get_value(TRACE_ID_KEY)
        if isinstance(chosen, int) and 0 < chosen < 1 << 128:
            return chosen
        return super().generate_trace_id()

    def is_trace_id_random(self) -> bool:
        return False  # W3C's flag would tell others that they may sample by the id


@dataclass(eq=False, repr=False)
class TraceSampler(Sampler):
    """Decides by a draw of its own (ADR 0002): the share `rate` (0 to 1) of new traces, at most `per_s` in a second (0:
    unlimited). `by_parent`: a parent's flag counts. With `slow_ms` what is dropped may be recorded when it ends."""

    rate: float
    _: KW_ONLY
    per_s: float = 0.0
    by_parent: bool = True
    slow_ms: int | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._random = random.Random()  # noqa: S311 - chance, not secrecy
        self._most = self._left = max(self.per_s, 1.0)
        self._filled_at = self.clock()
        slow_ns = None if self.slow_ms is None else self.slow_ms * 1_000_000
        self._dropped = (False, "" if slow_ns is None else f"{STATE_KEY}={self.slow_ms}", slow_ns)

    def decide(self, parent: SpanContext | None, *, is_untrusted: bool) -> tuple[bool, str, int | None]:
        """Whether a request is sampled, its trace state, and if it is not: from how many ns on it is slow."""
        if parent is not None and self.by_parent and not is_untrusted:
            is_sampled, state = parent.trace_flags.sampled, parent.trace_state
            return is_sampled, state.to_header(), None if is_sampled else _slow_ns(state)
        is_sampled = (self.rate >= 1 or self._random.random() < self.rate) and self._is_below_limit()
        return (True, "", None) if is_sampled else self._dropped

    def should_sample(self, parent_context: Context | None, *args: Any, **kwargs: Any) -> SamplingResult:
        parent = get_current_span(parent_context).get_span_context()
        if parent.is_valid:
            is_sampled = self.decide(parent, is_untrusted=False)[0]
        else:
            has_id = otel_context.get_value(TRACE_ID_KEY, parent_context) is not None
            is_sampled = has_id and self.decide(None, is_untrusted=False)[0]
        return (ALWAYS_ON if is_sampled else ALWAYS_OFF).should_sample(parent_context, *args, **kwargs)

    def get_description(self) -> str:
        return f"TraceSampler{{{self.rate},{self.per_s}}}"

    def _is_below_limit(self) -> bool:
        if not self.per_s:
            return True
        now = self.clock()
        self._left = min(self._most, self._left + (now - self._filled_at) * self.per_s)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def sampler_from(environ: Mapping[str, str], per_s: float = 0.0, slow_s: float = 10.0) -> TraceSampler:
    name = value_of(environ, "OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    kind = name.removeprefix("parentbased_")
    if kind == "always_off":
        return TraceSampler(0.0, by_parent=name != kind)
    rate = 1.0
    if kind == "traceidratio":
        rate = number_of(environ, "OTEL_TRACES_SAMPLER_ARG", 1.0, least=0.0, most=1.0)
    elif kind != "always_on":
        warn_of("OTEL_TRACES_SAMPLER", name, "parentbased_always_on")
        name = "parentbased_always_on"
    return TraceSampler(rate, per_s=per_s, by_parent=name != "always_on", slow_ms=round(slow_s * 1000))


class RequestTracerProvider(TracerProvider):
    """Takes the spans of requests when they have ended (`smcp_bus.request_spans`), beside OpenTelemetry's own."""

    def __init__(self, sampler: TraceSampler, resource: Resource | None = None) -> None:
        super().__init__(sampler=sampler, resource=resource, id_generator=ContextIdGenerator(), shutdown_on_exit=False)
        self.decide = sampler.decide
        self._processors: list[SpanProcessor] = []

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        super().add_span_processor(span_processor)
        self._processors.append(span_processor)

    def record(self, span: Any) -> None:
        """Take a span that has ended. It has ReadableSpan's attributes (`smcp_bus.request_spans`)."""
        for processor in self._processors:
            processor.on_end(span)

    def outcomes(self) -> dict[str, float]:
        each = [found.counts for found in self._processors if isinstance(found, BoundedBatchSpanProcessor)]
        return {name: sum(counts[name] for counts in each) for name in OUTCOMES}


def number_of(environ: Mapping[str, str], variable: str, default: float, *, least: float, most: float) -> float:
    text = value_of(environ, variable)
    with suppress(ValueError):
        if least <= (number := float(text or default)) <= most:
            return number
    warn_of(variable, text, str(default))
    return default


class BoundedBatchSpanProcessor(BatchSpanProcessor):
    """Exports spans in batches. `OTEL_BSP_MAX_QUEUE_SIZE` spans wait at most, those that are being sent included; what
    ends then is dropped and counted, which OpenTelemetry's own queue does not do."""

    def __init__(self, exporter: SpanExporter, environ: Mapping[str, str]) -> None:
        self._most = most = int(number_of(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048, least=1, most=LONGEST_QUEUE))
        size = int(number_of(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(512, most), least=1, most=most))
        self._accepted = 0
        self.counts = (counted := _Counted(exporter)).counts
        super().__init__(counted, max_queue_size=self._most, max_export_batch_size=size)

    def on_end(self, span: ReadableSpan) -> None:
        if self._accepted - self.counts["exported"] - self.counts["failed"] >= self._most:
            self.counts["dropped"] += 1
            return
        self._accepted += 1
        super().on_end(span)


class _Counted(SpanExporter):
    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self.counts = dict.fromkeys(OUTCOMES, 0.0)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        outcome = "failed"
        try:
            result = self._inner.export(spans)
            outcome = "exported" if result is SpanExportResult.SUCCESS else "failed"
        finally:
            self.counts[outcome] += len(spans)
        return result


def _slow_ns(state: TraceState) -> int | None:
    text = state.get(STATE_KEY)
    return int(text) * 1_000_000 if text is not None and text.isdecimal() and len(text) <= 9 else None
