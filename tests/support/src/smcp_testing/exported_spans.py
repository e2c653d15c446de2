"""A process that is traced, and what it exports."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from smcp_service.otlp_spans import RedactingSpanExporter
from smcp_service.telemetry import RequestTracerProvider, sampler_from


@contextmanager
def exported_spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """In place of the one tracer provider that a process has for good."""
    exporter = InMemorySpanExporter()
    provider = RequestTracerProvider(sampler_from({}))
    provider.add_span_processor(SimpleSpanProcessor(RedactingSpanExporter(exporter, provider.resource)))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()
