"""A CLIENT span round each request. Without an OpenTelemetry SDK in the application this does nothing.

An application that is itself traced gets its trace continued: the request's optional field `traceparent` carries it.
Arguments and results of tools are never recorded.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from smcp_agent.errors import SmcpError
from smcp_proto.trace_ids import TRACE_ID_KEY, trace_id


@dataclass(frozen=True, slots=True)
class Traced:
    """The span of a request."""

    span: Span
    fields: Mapping[str, str]
    """What the request says about it: `traceparent`, or nothing."""
    trace_id: str
    """32 hex digits: the application's trace, or the one that follows from the req_id."""

    def failed(self, kind: str) -> None:
        """Mark the span as an error; `kind` becomes its `error.type`."""
        self.span.set_attribute("error.type", kind)
        self.span.set_status(Status(StatusCode.ERROR))


@contextmanager
def request_span(event: str, office: str, agent: str, req_id: str, attributes: Mapping[str, str]) -> Iterator[Traced]:
    """The span `<event>`; an SmcpError that leaves the block marks it with its code."""
    own_id = trace_id(office, agent, req_id)
    token = otel_context.attach(otel_context.set_value(TRACE_ID_KEY, own_id))
    try:
        with trace.get_tracer("smcp_agent").start_as_current_span(
            event,
            kind=SpanKind.CLIENT,
            attributes={"smcp.event": event, "smcp.req_id": req_id, "smcp.office": office, **attributes},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            fields: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(fields)
            context = span.get_span_context()
            used = context.trace_id if context.is_valid else own_id
            traced = Traced(
                span,
                {"traceparent": fields["traceparent"]} if "traceparent" in fields else {},
                trace.format_trace_id(used),
            )
            try:
                yield traced
            except SmcpError as error:
                traced.failed(str(int(error.code)))
                raise
            except asyncio.CancelledError:
                traced.failed("cancelled")
                raise
    finally:
        otel_context.detach(token)
