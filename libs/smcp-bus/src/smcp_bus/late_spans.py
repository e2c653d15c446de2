"""Spans of requests that are not sampled, kept in memory until they end, and recorded if they fail or are slow.

The sampler where a trace begins asks for it, by the trace state `smcp=<milliseconds>` (ADR 0042): a request that took
longer is slow. Processes carry it on, and each decides for its own part. `tracing` opens these spans in the place of
OpenTelemetry's; they cost a tenth. Recording them opens OpenTelemetry's with the ids and times that they had.
"""

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TraceState,
)

from smcp_proto.trace_ids import TRACE_ID_KEY

STATE_KEY: Final = "smcp"
"""Of the trace state."""
SPAN_ID_KEY: Final = "smcp.span_id"
"""In the OpenTelemetry context: the id (an int) that the next span gets."""
KEPT_KEY: Final = "smcp_kept"
"""True in the OpenTelemetry context where a span is recorded whatever its parent's flag says."""
MOST_EVENTS: Final = 32
"""Of one span: these spans are in memory, and nearly all are dropped."""

_random: Final = random.Random()  # noqa: S311 - ids, not secrecy


def slow_ms(state: TraceState) -> int | None:
    """From how long on a request is slow, in milliseconds; None: nothing is recorded afterwards."""
    text = state.get(STATE_KEY)
    return int(text) if text is not None and text.isdecimal() and len(text) <= 9 else None


class _Request:
    """The spans of one request in one process."""

    __slots__ = ("is_kept", "slow_ns", "spans", "tracer")

    def __init__(self, tracer: Tracer, slow_ns: int) -> None:
        self.tracer = tracer
        self.slow_ns = slow_ns
        self.spans: list[LateSpan] = []
        self.is_kept: bool | None = None
        """None: it has not ended."""


class LateSpan(Span):
    """Made by `late_span` and by `child`. Times are unix time in ns."""

    __slots__ = (
        "_attributes",
        "_context",
        "_end_ns",
        "_events",
        "_kind",
        "_links",
        "_name",
        "_parent",
        "_request",
        "_start_ns",
        "_status",
    )

    def __init__(
        self,
        request: _Request,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        context: SpanContext,
        parent: SpanContext | None,
    ) -> None:
        self._request = request
        self._name = name
        self._kind = kind
        self._attributes = dict(attributes)
        self._context = context
        self._parent = parent
        self._events: list[tuple[str, Any, int]] = []
        self._links: list[Link] = []
        self._status: StatusCode = StatusCode.UNSET
        self._start_ns = time.time_ns()
        self._end_ns = 0
        request.spans.append(self)

    @property
    def will_be_kept(self) -> bool:
        """Whether the request is recorded if it ends now."""
        return self._status is StatusCode.ERROR or time.time_ns() - self._start_ns >= self._request.slow_ns

    def child(self, name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> "LateSpan":
        own = self._context
        id_ = _random.getrandbits(64) or 1
        context = SpanContext(
            own.trace_id, id_, is_remote=False, trace_flags=own.trace_flags, trace_state=own.trace_state
        )
        return LateSpan(self._request, name, kind, attributes, context, own)

    def end(self, end_time: int | None = None) -> None:
        if self._end_ns:
            return
        self._end_ns = end_time or time.time_ns()
        request = self._request
        if request.is_kept is None and self is request.spans[0]:
            request.is_kept = self.will_be_kept
            spans, request.spans = request.spans, []  # no circle is left for the collector of garbage
            for span in spans if request.is_kept else ():
                span.record()
        elif request.is_kept:
            self.record()

    def get_span_context(self) -> SpanContext:
        return self._context

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._attributes.update(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self._attributes[key] = value

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        if len(self._events) < MOST_EVENTS:
            self._events.append((name, attributes, timestamp or time.time_ns()))

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        self._links.append(Link(context, attributes))

    def update_name(self, name: str) -> None:
        self._name = name

    def is_recording(self) -> bool:
        return True

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._status = status.status_code if isinstance(status, Status) else status

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        """Not recorded: its text may quote arguments."""

    def record(self) -> None:
        """Record it if it has ended; else `end` does."""
        if not self._end_ns:
            return
        context = otel_context.set_value(SPAN_ID_KEY, self._context.span_id, Context())
        context = otel_context.set_value(KEPT_KEY, True, context)
        if self._parent is None:
            context = otel_context.set_value(TRACE_ID_KEY, self._context.trace_id, context)
        else:
            context = trace.set_span_in_context(NonRecordingSpan(self._parent), context)
        token = otel_context.attach(context)  # the generator of ids gets no context
        try:
            span = self._request.tracer.start_span(
                self._name, context, self._kind, self._attributes, self._links, self._start_ns
            )
            for event in self._events:
                span.add_event(*event)
            span.set_status(self._status)
            span.end(self._end_ns)
        finally:
            otel_context.detach(token)


def late_span(
    tracer: Tracer,
    dropped: Span,
    name: str,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    parent: SpanContext | None,
) -> Span:
    """The first span of a request in this process, in the place of one that the sampler has dropped; that one, where
    nothing is recorded afterwards."""
    context = dropped.get_span_context()
    slow = slow_ms(context.trace_state)
    if slow is None or context.trace_flags.sampled:
        return dropped
    return LateSpan(_Request(tracer, slow * 1_000_000), name, kind, attributes, context, parent)


@contextmanager
def child_span(tracer: Tracer, name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> Iterator[Span]:
    """A span below the current one, and current itself while the body runs. Errors are the caller's to mark."""
    parent = trace.get_current_span()
    if isinstance(parent, LateSpan):
        span: Span = parent.child(name, kind, attributes)
    else:
        span = tracer.start_span(name, kind=kind, attributes=attributes)
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        yield span
    finally:
        otel_context.detach(token)
        span.end()
