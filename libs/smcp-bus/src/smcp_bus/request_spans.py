"""The spans of requests, cheaper than OpenTelemetry's: a gateway opens two for each call.

They are plain objects until they end. A sampled request's are handed over then. Those of a request that was not sampled
stay in memory until it ends, and are handed over if it failed or was slow: the sampler where the trace began says from
how long on it is slow, in the trace state (`smcp=<milliseconds>`, ADR 0042). Each process decides for its own part.

What takes them is the process's tracer provider (`Recorder`, in `smcp_service.telemetry`). OpenTelemetry's own spans,
such as those of the MCP SDK, are children of these like of any others.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, runtime_checkable

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer, TraceState

STATE_KEY: Final = "smcp"
"""Of the trace state."""
MOST_EVENTS: Final = 32
"""Of one span: nearly all of these spans are dropped in the end."""
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

_DROPPED: Final = TraceFlags(TraceFlags.DEFAULT)
_EMPTY: Final = TraceState()
_random: Final = random.Random()  # noqa: S311 - ids, not secrecy
EventData = tuple[str, Mapping[str, Any] | None, int]
"""Name, attributes, unix time in ns."""


@runtime_checkable
class Recorder(Protocol):
    """The tracer provider of a process that records requests."""

    def decide(self, parent: SpanContext | None, *, is_doubted: bool) -> tuple[bool, TraceState | None]:
        """Whether a request below `parent` is sampled, and its trace state. `is_doubted`: the parent's flag does not
        count."""

    def record(
        self,
        *,
        name: str,
        kind: SpanKind,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: Mapping[str, Any],
        events: Sequence[EventData],
        links: Sequence[Link],
        status: StatusCode,
        start_time: int,
        end_time: int,
    ) -> None:
        """Take a span that has ended. Times are unix time in ns."""


def recorder() -> Recorder | None:
    """The one of this process; None: nothing is recorded."""
    provider = trace.get_tracer_provider()
    return provider if isinstance(provider, Recorder) else None


def slow_ms(state: TraceState) -> int | None:
    """From how long on a request is slow, in milliseconds; None: nothing is recorded afterwards."""
    text = state.get(STATE_KEY) if state else None
    return int(text) if text is not None and text.isdecimal() and len(text) <= 9 else None


Attributes = Mapping[str, Any]
Describe = Callable[[], Attributes]
"""Called when a span is recorded: most are not."""


class _Request:
    """One request in one process."""

    __slots__ = ("flags", "is_kept", "labels", "recorder", "slow_ns", "spans", "state", "trace_id")

    def __init__(
        self, recorder: Recorder, labels: Describe, trace_id: int, flags: TraceFlags, state: TraceState
    ) -> None:
        self.recorder = recorder
        self.labels = labels
        """Attributes of all of its spans."""
        self.trace_id = trace_id
        self.flags = flags
        self.state = state
        self.spans: list[RequestSpan] = []
        """In memory, the first one first."""
        self.is_kept: bool | None = None
        """None: that is decided when it ends."""
        self.slow_ns = 0


class RequestSpan(Span):
    """Made by `first_span` and `child`."""

    __slots__ = (
        "_attributes", "_described", "_end_ns", "_events", "_kind", "_links", "_name", "_parent", "_request",
        "_start_ns", "_status", "span_id",
    )  # fmt: skip

    def __init__(
        self,
        request: _Request,
        name: str,
        kind: SpanKind,
        described: Describe | Attributes,
        parent: "SpanContext | RequestSpan | None",
    ) -> None:
        self.span_id = _random.getrandbits(64) or 1
        self._request = request
        self._name = name
        self._kind = kind
        self._described = described
        self._attributes: dict[str, Any] = {}
        self._parent = parent
        self._events: list[EventData] = []
        self._links: list[Link] = []
        self._status: StatusCode = StatusCode.UNSET
        self._start_ns = time.time_ns()
        self._end_ns = 0
        if request.is_kept is None:
            request.spans.append(self)

    @property
    def will_be_kept(self) -> bool:
        """Whether the span, and its request, would be recorded if it ended now."""
        request = self._request
        if request.is_kept is not None:
            return request.is_kept
        return self._status is StatusCode.ERROR or time.time_ns() - self._start_ns >= request.slow_ns

    @property
    def headers(self) -> dict[str, str]:
        """That carry the trace on."""
        request = self._request
        headers = {"traceparent": f"00-{request.trace_id:032x}-{self.span_id:016x}-{int(request.flags):02x}"}
        if request.state:
            headers["tracestate"] = _header(request.state)
        return headers

    def child(self, name: str, kind: SpanKind, attributes: Attributes) -> "RequestSpan":
        """A span below this one, with the request's labels."""
        return RequestSpan(self._request, name, kind, attributes, self)

    def end(self, end_time: int | None = None) -> None:
        if self._end_ns:
            return
        self._end_ns = end_time or time.time_ns()
        request = self._request
        if request.is_kept is None:
            if request.spans[0] is not self:
                return
            request.is_kept = self.will_be_kept
            spans, request.spans = request.spans, []  # no circle is left for the collector of garbage
            for span in spans if request.is_kept else ():
                span.record()
        elif request.is_kept:
            self.record()

    def record(self) -> None:
        """Export the span now if it has ended; otherwise `end` exports it."""
        if not self._end_ns:
            return
        request, described, parent = self._request, self._described, self._parent
        request.recorder.record(
            name=self._name,
            kind=self._kind,
            context=self._context_with(SAMPLED),
            parent=parent.get_span_context() if isinstance(parent, RequestSpan) else parent,
            attributes={
                **request.labels(),
                **(described() if callable(described) else described),
                **self._attributes,
            },
            events=self._events,
            links=self._links,
            status=self._status,
            start_time=self._start_ns,
            end_time=self._end_ns,
        )

    def get_span_context(self) -> SpanContext:
        return self._context_with(self._request.flags)

    def _context_with(self, flags: TraceFlags) -> SpanContext:
        return SpanContext(self._request.trace_id, self.span_id, False, flags, self._request.state)

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
        return self._request.is_kept is not False

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self._status = status.status_code if isinstance(status, Status) else status

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        """Not recorded: its text may quote arguments."""


def first_span(
    recorder: Recorder,
    name: str,
    kind: SpanKind,
    attributes: Describe,
    *,
    labels: Describe,
    trace_id: int,
    parent: SpanContext | None,
    is_doubted: bool,
    may_be_late: bool,
) -> RequestSpan:
    """The first span of a request in this process.

    Args:
        labels: attributes of all of its spans.
        trace_id: of a new trace.
        parent: who asks, in another process.
        is_doubted: nobody knows who set the parent's sampled flag.
        may_be_late: whether it is recorded afterwards if it fails or is slow.
    """
    is_sampled, state = recorder.decide(parent, is_doubted=is_doubted)
    flags = SAMPLED if is_sampled else _DROPPED
    request = _Request(recorder, labels, parent.trace_id if parent else trace_id, flags, state or _EMPTY)
    slow = slow_ms(state) if state and may_be_late and not is_sampled else None
    if slow is None:
        request.is_kept = is_sampled
    else:
        request.slow_ns = slow * 1_000_000
    if parent is not None and is_doubted and not parent.trace_flags.sampled:
        span = RequestSpan(request, name, kind, attributes, None)  # its application does not record the parent
        span.add_link(parent)
        return span
    return RequestSpan(request, name, kind, attributes, parent)


@contextmanager
def child_span(tracer: Tracer, name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> Iterator[Span]:
    """A span below the current one, and current itself while the body runs; `tracer`'s where none of ours is current.
    Errors are the caller's to mark."""
    parent = trace.get_current_span()
    span: Span
    if isinstance(parent, RequestSpan):
        span = parent.child(name, kind, attributes)
    else:
        span = tracer.start_span(name, kind=kind, attributes=attributes)
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        yield span
    finally:
        otel_context.detach(token)
        span.end()


def _header(state: TraceState) -> str:
    return f"{STATE_KEY}={state[STATE_KEY]}" if len(state) == 1 and STATE_KEY in state else state.to_header()
