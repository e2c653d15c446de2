"""Spans as they leave the process: without texts of errors, since these quote arguments."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status


class WithoutTexts(SpanExporter):
    """Exports spans without the texts of errors: a status keeps its code, an exception its type."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export copies of the spans that have no texts of errors."""
        return self._inner.export([_without_texts(span) for span in spans])

    def shutdown(self) -> None:
        """As OpenTelemetry's `SpanExporter`."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As OpenTelemetry's `SpanExporter`."""
        return self._inner.force_flush(timeout_millis)


def _without_texts(span: ReadableSpan) -> ReadableSpan:
    if span.status.description is None and not span.events:
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[_event_without_texts(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _event_without_texts(event: Event) -> Event:
    texts = {"exception.message", "exception.stacktrace"}
    kept = {name: value for name, value in (event.attributes or {}).items() if name not in texts}
    return Event(event.name, kept, event.timestamp)
