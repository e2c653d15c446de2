"""A process that is traced, and what it exports."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status

from smcp_service.otlp_spans import SCOPE, without_texts
from smcp_service.tracer_provider import RequestTracerProvider, sampler_from


class ReadableSpanExporter(SpanExporter):
    """Gives `inner` what `smcp_service.otlp_spans` would write of each span, as OpenTelemetry's own class."""

    def __init__(self, inner: SpanExporter, resource: Resource) -> None:
        self._inner = inner
        self._resource = resource

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([self._readable(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def _readable(self, span: ReadableSpan) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(event.name, without_texts(event), event.timestamp) for event in span.events],
            links=span.links,
            kind=span.kind,
            status=Status(span.status.status_code),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=getattr(span, "instrumentation_scope", SCOPE),
        )


@contextmanager
def exported_spans(
    monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str] = MappingProxyType({})
) -> Iterator[InMemorySpanExporter]:
    """In place of the one tracer provider that a process has for good. `environ`: how it samples."""
    exporter = InMemorySpanExporter()
    provider = RequestTracerProvider(sampler_from(environ, slow_s=120))
    provider.add_span_processor(SimpleSpanProcessor(ReadableSpanExporter(exporter, provider.resource)))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()
