"""Spans around what goes through the dispatcher and over the bus, and how each request ended, for metrics.

Names and attributes follow OpenTelemetry's conventions for messaging: `send <destination>` (PRODUCER) on the side that
asks, `process <destination>` (CONSUMER) on the side that answers, where the destination is the subject's template; and
a SERVER span named after the event where a Socket.IO client came in. Every span has `smcp.req_id` and `smcp.office`.
Arguments, results and texts of errors are never recorded. What processes ask each other beside (leases, `alive`,
`pending`) is recorded only below a request. How spans are kept is for `request_spans`.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from smcp_bus import registry_contract, subjects
from smcp_bus.dispatch import Answer, Call, Ended, Record, Tracing
from smcp_bus.exact_json import LARGEST_READ
from smcp_bus.headers import TRACEPARENT, TRACESTATE
from smcp_bus.request_spans import Attributes, Request, RequestSpan
from smcp_proto import tool_results
from smcp_proto.catalog import CATALOG, Row, hex_trace_id, trace_id
from smcp_proto.errors import ErrorCode
from smcp_proto.schemas.base import MAX_REQ_ID_LENGTH
from smcp_proto.schemas.tools import TOOL_PROGRESS
from smcp_service.logging import bind_call
from smcp_service.telemetry import recorder

if TYPE_CHECKING:
    from smcp_service.tracer_provider import RequestTracerProvider

LONGEST: Final = MAX_REQ_ID_LENGTH
"""Characters of an attribute's value: what a peer chose is cut there."""

_MAY_HAVE_FAILED: Final = re.compile(rb'isError"\s*:\s*true')
"""A cheap test (1 ms for 1 MiB): most results need not be parsed. `re` looks for plain text first."""
LONGEST_TRACESTATE: Final = 512
"""Characters, as the specification of W3C asks to carry on; a longer one is dropped."""
_W3C: Final = TraceContextTextMapPropagator()
logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)  # it warns of what any peer may send
Given = TypeVar("Given")
_CURRENT: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""The key of the current span in OpenTelemetry's contexts: making one with it costs half of `set_span_in_context`."""
_UNTRACED: Final[AbstractContextManager[Record]] = nullcontext(lambda answer: "")
_NOTHING: Final = nullcontext[Mapping[str, str]](MappingProxyType({}))


def client_spans() -> Tracing | None:
    """SERVER spans for events of Socket.IO clients (`client:tool_call`); None while nothing is recorded. Progress has
    none: a call may have hundreds.
    """
    if (records := recorder()) is None:
        return None
    return lambda call: _UNTRACED if call.row.event == TOOL_PROGRESS else _open(records, call)


def bus_spans() -> Tracing | None:
    """CONSUMER spans for requests over the bus (`process smcp.v1.{office}.client.{computer}.tool_call`); or None."""
    if (records := recorder()) is None:
        return None

    def open_span(call: Call) -> AbstractContextManager[Record]:
        if call.row.source == registry_contract.SOURCE and TRACEPARENT not in call.headers:
            return _UNTRACED
        name, attributes = _destination("process", call.subject)
        return _open(records, call, name, SpanKind.CONSUMER, attributes)

    return open_span


def office_of(call: Call) -> str:
    """The office that a request is about: the caller's, or the one that it wants to join."""
    return call.caller.office or _text(call.payload, "office_id")


def trace_id_of(call: Call) -> int:
    """The id of the trace that a request belongs to, whether it is recorded or not; for log lines and the audit trail.
    The call keeps it: it costs 1 µs, 6 if the Agent is traced."""
    if not call.trace_id:
        parent, _ = _parent(call)
        call.trace_id = (hex_trace_id(call.req_id) or _own_trace_id(call)) if parent is None else parent.trace_id
    return call.trace_id


def log_fields(call: Call) -> bind_call:
    """A dispatcher's `observe`: binds the fields of a call to all log lines that are written during it. Timers that are
    started during it keep these values, and not the call."""
    return bind_call(req_id=call.req_id, office=call.caller.office or office_of(call), trace_id=trace_id_of(call))


def sending(subject: str) -> AbstractContextManager[Mapping[str, str]]:
    """A PRODUCER span round a message to `subject`, where a request is traced; gives the headers that carry the trace
    on. An error that leaves the block marks it."""
    span = sent(subject, trace.get_current_span())
    return _Current(span, span.headers) if isinstance(span, RequestSpan) else _NOTHING


def sent(subject: str, by: Span) -> Span:
    """As `sending`, below a span that is known; it is not made the current one, which costs as much as the span."""
    if type(by) is not RequestSpan:  # `isinstance` asks abc, for each call
        return trace.INVALID_SPAN
    name, attributes = _destination("send", subject)
    return by.child(name, SpanKind.PRODUCER, attributes)


def carried(span: Span | None = None) -> Mapping[str, str]:
    """The headers of the span (the current one), for a peer that is asked; none: nothing is traced."""
    span = span or trace.get_current_span()
    return span.headers if type(span) is RequestSpan else {}


def event(name: str, **attributes: str | int) -> None:
    """Something that happened to the request that is handled here, as an event of its span: it costs less than a span,
    and a call's tree keeps its shape."""
    trace.get_current_span().add_event(name, attributes)


def link(span: Span) -> None:
    """The request that is handled here is about that one: a cancel, say."""
    current = trace.get_current_span()
    if current.is_recording() and span.get_span_context().is_valid:
        current.add_link(span.get_span_context())


@contextmanager
def caused_by(headers: Mapping[str, str]) -> Iterator[None]:
    """Around the handling of a notification, which has no span of its own: its sender's span is the current one."""
    parent = read_span_context(headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, ""))
    span = trace.INVALID_SPAN if parent is None else trace.NonRecordingSpan(parent)
    token = otel_context.attach(trace.set_span_in_context(span, Context()))
    try:
        yield
    finally:
        otel_context.detach(token)


def recorded_trace_id() -> str:
    """The id (hex) of the trace that is recorded here, else an empty text; for exemplars."""
    span = trace.get_current_span()
    if isinstance(span, RequestSpan):
        return span.kept_trace_id
    context = span.get_span_context()
    return format(context.trace_id, "032x") if context.trace_flags.sampled else ""


def _open(
    records: "RequestTracerProvider",
    call: Call,
    name: str = "",
    kind: SpanKind = SpanKind.SERVER,
    attributes: Attributes = MappingProxyType({}),
) -> AbstractContextManager[Record]:
    """`name`: the event's where it is empty; `other` for one that no version of the protocol has."""
    name = name or (call.row.event if call.row.source else OTHER)
    parent, is_untrusted = _parent(call)
    request = Request(
        records,
        partial(_labels, call),
        trace_id_of(call),
        records.decide(parent, is_untrusted=is_untrusted),
        # Others fail without their caller's failing: their spans would have no parent.
        recorded_on_failure=call.row.seconds is None or (kind is SpanKind.SERVER and TRACEPARENT not in call.headers),
    )
    # The application of such a parent does not record it.
    is_linked = parent is not None and is_untrusted and not parent.trace_flags.sampled
    described = partial(_described, call, attributes)
    call.span = span = RequestSpan(request, name, kind, described, None if is_linked else parent)
    if parent is not None and is_linked:
        span.add_link(parent)
    return _Current(span, partial(_answered, span, call))


class _Current(AbstractContextManager[Given]):
    """The span is the current one while the body runs, and ends with it; an error marks it. It is alone in its context,
    without what this task inherited."""

    __slots__ = ("_given", "_span", "_token")

    def __init__(self, span: RequestSpan, given: Given) -> None:
        self._span = span
        self._given = given

    def __enter__(self) -> Given:
        self._token = otel_context.attach(Context({_CURRENT: self._span}))
        return self._given

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        otel_context.detach(self._token)
        if error is not None or not self._span.end_time:
            self._span.__exit__(None, error, None)


def _answered(span: RequestSpan, call: Call, answer: Answer) -> str:
    if answer.error is not None:
        span.fail(str(answer.error))
    elif call.row.event == "client:tool_call" and (why := tool_failure(answer)):
        span.fail(why)
    span.end()
    return span.kept_trace_id


def _labels(call: Call) -> Attributes:
    return {"smcp.req_id": call.req_id[:LONGEST], "smcp.office": office_of(call)[:LONGEST]}


def _described(call: Call, more: Attributes) -> Attributes:
    attributes = {"smcp.event": call.row.event[:LONGEST]}
    for field, attribute in (("computer", "smcp.computer"), ("tool_name", "gen_ai.tool.name")):
        if value := _text(call.payload, field):
            attributes[attribute] = value[:LONGEST]
    return {**attributes, **more}


@lru_cache(maxsize=4096)
def _destination(operation: str, subject: str) -> tuple[str, Mapping[str, str]]:
    template, group = subjects.destination(subject)
    attributes = {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": subject,
        "messaging.destination.template": template,
    }
    if operation == "process" and group:
        attributes["messaging.consumer.group.name"] = group
    return f"{operation} {template}", attributes


def _parent(call: Call) -> tuple[SpanContext | None, bool]:
    """The span that asks, and whether its sampled flag does not count: of a client's own field, where no token says
    who the client is."""
    if TRACEPARENT in call.headers:
        return read_span_context(call.headers[TRACEPARENT], call.headers.get(TRACESTATE, "")), False
    if TRACEPARENT not in call.payload:
        return None, False
    return read_span_context(_text(call.payload, TRACEPARENT)), not call.caller.authenticated


def read_span_context(traceparent: str, tracestate: str = "") -> SpanContext | None:
    """A span of another process, by the W3C's Trace Context; None: it says none. Neither raises nor logs."""
    headers = {TRACEPARENT: traceparent, TRACESTATE: tracestate if len(tracestate) <= LONGEST_TRACESTATE else ""}
    context = trace.get_current_span(_W3C.extract(headers, Context())).get_span_context()
    return context if context.is_valid else None


def _own_trace_id(call: Call) -> int:
    agent = _text(call.payload, "agent") or call.caller.name or _text(call.payload, "name")
    return trace_id(office_of(call), agent, call.req_id)


def _text(payload: Mapping[str, Any], field: str) -> str:
    value = payload.get(field)
    return value if isinstance(value, str) else ""


def tool_failure(answer: Answer) -> str:
    """See `smcp_proto.tool_results.failure`. A gateway that checks the answer for its Agent knows it already; elsewhere
    it is empty for an answer above `LARGEST_READ`."""
    if answer.failure is None:
        answer.failure, body = "", answer.body
        if len(body) <= LARGEST_READ and _MAY_HAVE_FAILED.search(body):
            with suppress(orjson.JSONDecodeError):
                answer.failure = tool_results.failure(orjson.loads(body))
    return answer.failure


OTHER: Final = "other"
"""An event that is not in the catalog, or a code that is not in the protocol."""

_CODES: Final = {int(code): str(int(code)) for code in ErrorCode}


def counted(add: Callable[..., None]) -> Ended:
    """For a dispatcher's `ended`: each request goes to `add` as its seconds, its event, its outcome and its trace."""

    def ended(row: Row, seconds: float, answer: Answer | None, trace_id: str) -> None:
        event = row.event if row.event in CATALOG or row.source == registry_contract.SOURCE else OTHER
        add(seconds, event, outcome_of(answer), trace_id=trace_id)

    return ended


def outcome_of(answer: Answer | None) -> str:
    """`ok`, `timeout` or `cancelled` (a tool's, by its result's `meta`), the error's code, `other`, or `broken_off`."""
    if answer is None:
        return "broken_off"
    if answer.error is not None:
        return _CODES.get(answer.error, OTHER)
    failure = tool_failure(answer)
    return failure if failure in ("timeout", "cancelled") else "ok"
