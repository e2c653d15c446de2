"""Traces, set up from the standard `OTEL_*` variables of OpenTelemetry.

Spans go over HTTP alone. An unknown value gets a warning and counts as the default. Unlike the SDK's set-up:

- A new trace takes its id from the OpenTelemetry context (`TRACE_ID_KEY`), since it follows from the request's id.
  Spans without one are a library's own (the handshake with an MCP server, say), and are not recorded.
- Texts of errors are not exported (`otlp_spans`).
- Ratio samplers draw a random number where the trace begins (ADR 0002), and `traceidratio` is always parent-based.
- A trace that is dropped says in its trace state from how long on a request is slow: spans of requests that fail or are
  slow are recorded when they end (ADR 0042).
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

if TYPE_CHECKING:  # with it comes OpenTelemetry's SDK: 1 MB
    from smcp_service.tracer_provider import RequestTracerProvider

# The SDK, which does not import this package, sets this key (`smcp_proto.catalog.TRACE_ID_KEY`).
TRACE_ID_KEY: Final = "smcp.trace_id"
"""Under this key of the OpenTelemetry context stands the id (an int) of the trace that begins."""
FLUSH_S: Final = 5.0
OUTCOMES: Final = ("exported", "failed", "dropped")
"""Of spans that were to be exported: the collector took them, did not, or too many waited for it."""

_log: Final = logging.getLogger("smcp_service.telemetry")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@asynccontextmanager
async def open_telemetry(service: str, *, per_s: float, slow_s: float) -> AsyncIterator["RequestTracerProvider | None"]:
    """Set up traces for this process while the body runs, and export what is left when it ends. None: off. Open it
    before anything asks for a tracer, and once (RuntimeError): OpenTelemetry keeps its provider."""
    environ = os.environ
    if not _is_exported(environ):
        yield None
        return
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        raise RuntimeError("telemetry was already set up in this process")  # noqa: TRY004 - not about a type
    from smcp_service import otlp_spans  # noqa: PLC0415 -- they bring much along
    from smcp_service import tracer_provider as sdk  # noqa: PLC0415

    provider = sdk.RequestTracerProvider(sdk.sampler_from(environ, per_s, slow_s), sdk.resource_of(service))
    exporter = otlp_spans.OtlpHttpSpanExporter(provider.resource)
    provider.add_span_processor(sdk.BoundedBatchSpanProcessor(exporter, environ))
    trace.set_tracer_provider(provider)
    try:
        yield provider
    finally:
        try:
            async with asyncio.timeout(FLUSH_S):  # the SDK itself waits up to 30 s
                await asyncio.to_thread(provider.shutdown)
        except TimeoutError:
            _log.warning("the last spans could not be exported in time", extra={"seconds": FLUSH_S})


def value_of(environ: Mapping[str, str], variable: str) -> str:
    return environ.get(variable, "").strip().lower()


def warn_of(variable: str, value: str, instead: str) -> None:
    _log.warning("telemetry setting is not known", extra={"variable": variable, "value": value, "instead": instead})


def _is_exported(environ: Mapping[str, str]) -> bool:
    if value_of(environ, "OTEL_SDK_DISABLED") == "true":
        return False
    is_placed = any(value_of(environ, each) for each in _ENDPOINTS)
    exporter = value_of(environ, "OTEL_TRACES_EXPORTER") or ("otlp" if is_placed else "none")
    if exporter not in ("otlp", "none"):
        warn_of("OTEL_TRACES_EXPORTER", exporter, "none")
    return exporter == "otlp"


def recorder() -> "RequestTracerProvider | None":
    """What takes the spans of requests in this process; None: nothing is recorded."""
    provider: Any = trace.get_tracer_provider()
    return provider if hasattr(provider, "record") else None  # ours alone has it
