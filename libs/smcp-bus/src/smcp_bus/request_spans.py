"""The spans of requests, cheaper than OpenTelemetry's: a gateway opens two for each call.

A sampled request's are handed over (to `smcp_service.tracer_provider`) as they end. Those of another stay in memory
until it ends, and are handed over if it failed or was slow (ADR 0042). OpenTelemetry's own spans may be their children.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer, TraceState

from smcp_bus.bus import RequestTimedOut
from smcp_proto.errors import SmcpError

if TYPE_CHECKING:
    from smcp_service.tracer_provider import RequestTracerProvider

MOST_EVENTS: Final = 32
"""Of one span."""

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
_STATUSES: Final = {code: Status(code) for code in StatusCode}
_FAILED: Final = _STATUSES[StatusCode.ERROR]

Attributes = Mapping[str, Any]
_NOTHING: Final[Attributes] = MappingProxyType({})
Describe = Callable[[], Attributes]
"""Called when a span is recorded: most are not."""


class EventData(NamedTuple):
    name: str
    attributes: Attributes | None
    timestamp: int
    """Unix time in ns."""


class Request:
    """One request in one process: what its spans share.

    Args:
        labels: attributes of all of its spans.
        sampling: see `TraceSampler.decide`.
        recorded_on_failure: whether it is recorded afterwards if it fails or is slow.
    """

    __slots__ = ("flags", "is_kept", "labels", "recorder", "slow_ns", "spans", "state", "trace_id")

    def __init__(
        self,
        recorder: "RequestTracerProvider",
        labels: Describe,
        trace_id: int,
        sampling: tuple[bool, str, int | None],
        *,
        recorded_on_failure: bool,
    ) -> None:
        is_sampled, self.state, slow_ns = sampling
        self.recorder = recorder
        self.labels: Describe | Attributes = labels
        self.trace_id = trace_id
        self.flags = _SAMPLED if is_sampled else _UNSAMPLED
        self.slow_ns = slow_ns or 0
        self.spans: list[RequestSpan] = []
        """In memory, the first one first."""
        self.is_kept = None if slow_ns is not None and recorded_on_failure else is_sampled
        """None: that is decided when it ends."""


class RequestSpan(Span):
    """The names are those of OpenTelemetry's ReadableSpan."""

    # Not set for each span: most never have them.
    attributes: Attributes = _NOTHING
    events: Sequence[EventData] = ()
    links: Sequence[Link] = ()
    status = _STATUSES[StatusCode.UNSET]
    end_time = 0
    _recorded: SpanContext | None = None

    def __init__(
        self,
        request: Request,
        name: str,
        kind: SpanKind,
        described: Describe | Attributes,
        parent: "SpanContext | RequestSpan | None",
    ) -> None:
        self.span_id = random.getrandbits(64) or 1
        self._request = request
        self._described = described
        self._parent = parent
        self.name = name
        self.kind = kind
        self.start_time = time.time_ns()
        if request.is_kept is None:
            request.spans.append(self)

    @property
    def context(self) -> SpanContext:
        """As it is recorded."""
        if self._recorded is None:
            self._recorded = self._context(_SAMPLED)
        return self._recorded

    @property
    def parent(self) -> SpanContext | None:
        return self._parent.context if isinstance(self._parent, RequestSpan) else self._parent

    def _is_remarkable(self, now: int) -> bool:
        return self.status is _FAILED or now - self.start_time >= self._request.slow_ns

    def fail(self, error_type: str) -> None:
        self.set_attribute("error.type", error_type)
        self.status = _FAILED

    @property
    def headers(self) -> dict[str, str]:
        """That carry the trace on."""
        request = self._request
        flags = "01" if request.flags else "00"
        headers = {"traceparent": "00-%032x-%016x-%s" % (request.trace_id, self.span_id, flags)}  # noqa: UP031 -- quicker
        if request.state:
            headers["tracestate"] = request.state
        return headers

    def child(self, name: str, kind: SpanKind, attributes: Attributes) -> "RequestSpan":
        """A span below this one, with the request's labels."""
        return RequestSpan(self._request, name, kind, attributes, self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        match error:
            case None:
                pass
            case SmcpError():
                self.fail(str(int(error.code)))
            case RequestTimedOut() | TimeoutError():
                self.fail("timeout")
            case asyncio.CancelledError():
                self.fail("cancelled")
            case _:
                self.fail(type(error).__name__)
        self.end()

    def end(self, end_time: int | None = None) -> None:
        if self.end_time:
            return
        self.end_time = end_time or time.time_ns()
        request = self._request
        if request.is_kept is None:
            if request.spans[0] is not self:
                return
            request.is_kept = self._is_remarkable(self.end_time)
            spans, request.spans = request.spans, []  # no circle is left for the collector of garbage
            for span in spans if request.is_kept else ():
                span.record()
        elif request.is_kept:
            self.record()

    def record(self) -> None:
        """Hand the span over if it has ended; otherwise `end` does. It no longer refers to its request's payload."""
        if not self.end_time:
            return
        request, described = self._request, self._described
        if callable(request.labels):
            request.labels = request.labels()
        self.attributes = {**request.labels, **(described() if callable(described) else described), **self.attributes}
        self._described = _NOTHING
        request.recorder.record(self)

    def get_span_context(self) -> SpanContext:
        return self._context(self._request.flags)

    def _context(self, flags: TraceFlags) -> SpanContext:
        return SpanContext(self._request.trace_id, self.span_id, False, flags, _trace_state(self._request.state))

    @property
    def kept_trace_id(self) -> str:
        """In hex, if the span would be recorded if it ended now; else empty."""
        request = self._request
        is_kept = self._is_remarkable(time.time_ns()) if request.is_kept is None else request.is_kept
        return f"{request.trace_id:032x}" if is_kept else ""

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.attributes = {**self.attributes, **attributes}

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes = {**self.attributes, key: value}

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        if len(self.events) < MOST_EVENTS:
            self.events = *self.events, EventData(name, attributes, timestamp or time.time_ns())

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        self.links = *self.links, Link(context, attributes)

    def update_name(self, name: str) -> None:
        self.name = name

    def is_recording(self) -> bool:
        return self._request.is_kept is not False

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        self.status = _STATUSES[status.status_code if isinstance(status, Status) else status]

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        """Not recorded: its text may quote arguments."""


@lru_cache(maxsize=64)
def _trace_state(header: str) -> TraceState:
    return TraceState.from_header([header]) if header else TraceState()


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
