"""Spans around what goes through the door and over the bus.

Names and attributes follow OpenTelemetry's conventions for messaging: `send <verb>` (PRODUCER) on the side that asks,
`process <verb>` (CONSUMER) on the side that answers, and a SERVER span named after the event where a
Socket.IO client came in. Every span has `smcp.req_id` and `smcp.office`. Arguments and results are never recorded.

Nothing here costs more than a comparison while no tracer provider is configured.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from smcp_proto.trace_ids import TRACE_ID_KEY, trace_id

from smcp_bus import headers as names
from smcp_bus.bus import Headers
from smcp_bus.dispatch_types import Answer, Call

OWN_DECISION_KEY: Final = "smcp_own_decision"
"""True in the OpenTelemetry context where a remote parent's sampled flag is not to be believed: a Socket.IO client
may continue its trace here, but whether we record is our own decision."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()

Tracing = Callable[[Call], AbstractContextManager[Span | None]]
"""Opens the span of a request that came through the door; None where nothing is recorded."""


def no_tracing(call: Call) -> AbstractContextManager[None]:
    """Record nothing."""
    return nullcontext()


def configured() -> bool:
    """Whether a tracer provider was set up in this process; asked once, when a door or a client is built."""
    provider = trace.get_tracer_provider()
    return not isinstance(provider, ProxyTracerProvider | trace.NoOpTracerProvider)


def client_spans() -> Tracing:
    """SERVER spans for events of Socket.IO clients: `client:tool_call`.

    The client's own trace is continued where the request says one (its optional field `traceparent`); otherwise
    the trace id follows from the request's id.
    """
    return _spans(SpanKind.SERVER, lambda call: call.row.event, _from_payload, own_decision=True)


def bus_spans() -> Tracing:
    """CONSUMER spans for requests that came over the bus: `process tool_call`."""
    return _spans(
        SpanKind.CONSUMER, lambda call: f"process {call.row.verb}", lambda call: call.headers, own_decision=False
    )


def _from_payload(call: Call) -> Mapping[str, str]:
    traceparent = call.payload.get("traceparent")
    return {"traceparent": traceparent} if isinstance(traceparent, str) else {}


def _spans(
    kind: SpanKind,
    name: Callable[[Call], str],
    carrier: Callable[[Call], Mapping[str, str]],
    *,
    own_decision: bool,
) -> Tracing:
    if not configured():
        return no_tracing
    tracer = trace.get_tracer("smcp_bus")

    @contextmanager
    def span(call: Call) -> Iterator[Span]:
        office = call.caller.office or ""
        agent = call.payload.get("agent")
        id_for_roots = trace_id(office, agent if isinstance(agent, str) else call.caller.name or "", call.req_id)
        context = otel_context.set_value(TRACE_ID_KEY, id_for_roots)
        context = otel_context.set_value(OWN_DECISION_KEY, own_decision, context)
        context = _PROPAGATOR.extract(dict(carrier(call)), context=context)
        token = otel_context.attach(context)
        try:
            with tracer.start_as_current_span(
                name(call),
                kind=kind,
                attributes=_attributes(call, kind),
                record_exception=False,
                set_status_on_exception=False,
            ) as current:
                yield current
        finally:
            otel_context.detach(token)

    return span


def _attributes(call: Call, kind: SpanKind) -> dict[str, str]:
    attributes = {
        "smcp.event": call.row.event,
        "smcp.req_id": call.req_id,
        "smcp.office": call.caller.office or "",
    }
    computer = call.payload.get("computer")
    if isinstance(computer, str):
        attributes["smcp.computer"] = computer
    tool = call.payload.get("tool_name")
    if isinstance(tool, str):
        attributes["gen_ai.tool.name"] = tool
    if kind is SpanKind.CONSUMER:
        attributes["messaging.system"] = "nats"
        attributes["messaging.operation.name"] = "process"
        attributes["messaging.operation.type"] = "process"
        attributes["messaging.destination.name"] = call.row.verb
    return attributes


def record_outcome(span: Span | None, answer: Answer) -> None:
    """Mark the span of a request that was refused or failed."""
    if span is None or answer.error is None:
        return
    span.set_attribute("error.type", str(answer.error))
    span.set_status(Status(StatusCode.ERROR))


@contextmanager
def send_span(verb: str, office: str, req_id: str) -> Iterator[dict[str, str]]:
    """A PRODUCER span round a request on the bus; gives the headers that carry it on."""
    with trace.get_tracer("smcp_bus").start_as_current_span(
        f"send {verb}",
        kind=SpanKind.PRODUCER,
        attributes={
            "smcp.req_id": req_id,
            "smcp.office": office,
            "messaging.system": "nats",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": verb,
        },
    ):
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        yield carrier


def trace_headers() -> Headers:
    """The headers that carry the current span on; empty where there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier


TRACE_HEADERS: Final = (names.TRACEPARENT, names.TRACESTATE)
