"""Traces, set up from the standard `OTEL_*` variables of OpenTelemetry.

Nothing is recorded or exported unless `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
`OTEL_TRACES_EXPORTER` is set (and `OTEL_SDK_DISABLED` is not ``true``). Some things differ from the SDK's own
set-up. Two are so because here the caller chooses the trace id (it follows from the request's id), the others because
a trace is of a request, and shows nothing of what was in it:

- the id of a new trace is taken from the OpenTelemetry context, under a key that the service gives; where there is
  none, a library works on its own account (the handshake with an MCP server, say), and nothing is recorded;
- texts of errors are not exported, since they quote arguments: of an exception its type remains;
- ratio samplers draw a number of their own instead of looking at the trace id. As such a draw cannot be repeated,
  it is made once, where the trace begins; `traceidratio` is therefore the same as `parentbased_traceidratio`.

A value that the specification does not know is warned about and replaced by the default, as it asks.
"""

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, Status, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from smcp_service.logging import get_logger

FLUSH_S: Final = 5.0
"""How long leaving `open_telemetry` waits for the last spans to be exported."""

_LARGEST_TRACE_ID: Final = (1 << 128) - 1


@asynccontextmanager
async def open_telemetry(
    service: str,
    *,
    trace_id_key: str | None = None,
    own_decision_key: str | None = None,
    flush_s: float = FLUSH_S,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[TracerProvider | None]:
    """Set up traces for this process while the body runs, and export what is left when it ends, in `flush_s`.

    `service` is the name where `OTEL_SERVICE_NAME` does not say another. With `trace_id_key`, a new trace begins only
    where the current OpenTelemetry context has its id (an int) under that key. Where the context has something true
    under `own_decision_key`, a remote parent's sampled flag is not believed, and the sampler decides as for a new
    trace.
    Gives None when telemetry is off. Open it before anything asks for a tracer, and once: OpenTelemetry keeps its
    provider for the life of the process; a second time raises RuntimeError.
    """
    environ = os.environ if environ is None else environ
    exporters = _exporters(environ)
    if not exporters:
        yield None
        return
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        raise RuntimeError("telemetry was already set up in this process")  # noqa: TRY004 - not about a type
    provider = TracerProvider(
        sampler=sampler_from(environ, trace_id_key=trace_id_key, own_decision_key=own_decision_key),
        resource=resource_of(service),
        id_generator=ContextIdGenerator(trace_id_key),
        shutdown_on_exit=False,
    )
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(WithoutTexts(exporter)))
    trace.set_tracer_provider(provider)
    try:
        yield provider
    finally:
        await _shut_down(provider, flush_s)


class ContextIdGenerator(RandomIdGenerator):
    """Takes the id of a new trace from the context under `key`; random where there is no legal one."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def generate_trace_id(self) -> int:
        if self._key is not None:
            chosen = otel_context.get_value(self._key)
            if isinstance(chosen, int) and 0 < chosen <= _LARGEST_TRACE_ID:
                return chosen
        return super().generate_trace_id()

    def is_trace_id_random(self) -> bool:
        """Whether others may take the ids for random ones (W3C Trace Context, random flag)."""
        # The flag would tell others that they may sample by the id.
        return self._key is None


def check_telemetry(environ: Mapping[str, str]) -> None:
    """Say which of its settings are not known, and what is done instead, as `open_telemetry` does."""
    names = _exporter_names(environ)
    if "otlp" in names:
        otlp_over_grpc(environ, "TRACES")
    if names:
        sampler_from(environ)


def _exporter_names(environ: Mapping[str, str]) -> list[str]:
    """Of those that are known, each once; says which are not."""
    if value_of(environ, "OTEL_SDK_DISABLED") == "true":
        return []
    names = value_of(environ, "OTEL_TRACES_EXPORTER")
    if not names:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        names = "otlp" if any(value_of(environ, variable) for variable in endpoints) else "none"
    known = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name in {"otlp", "console"}:
            known.append(name)
        elif name not in {"none", ""}:
            warn_of("OTEL_TRACES_EXPORTER", name, "none")
    return known


def _exporters(environ: Mapping[str, str]) -> list[SpanExporter]:
    return [_otlp_exporter(environ) if name == "otlp" else ConsoleSpanExporter() for name in _exporter_names(environ)]


def _otlp_exporter(environ: Mapping[str, str]) -> SpanExporter:
    # The exporters bring requests or grpc along: who does not export does not pay for importing them.
    if otlp_over_grpc(environ, "TRACES"):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter as HttpExporter,
    )

    return HttpExporter()


def resource_of(service: str) -> Resource:
    """Who it is that is traced and counted: `service`, where the standard variables do not say another name."""
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the name that the service gives itself.
    return Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())


async def _shut_down(provider: TracerProvider, seconds: float) -> None:
    """Export what is left. The SDK's own waiting is blocking and up to 30 s long, so a daemon thread does it."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def shut_down() -> None:
        provider.shutdown()
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:  # nobody waits any more: the loop is closed
            return

    threading.Thread(target=shut_down, name="telemetry-shutdown", daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            await done.wait()
    except TimeoutError:
        get_logger(__name__).warning("the last spans could not be exported in time", seconds=seconds)


class RatioSampler(Sampler):
    """Keeps the share `rate` (0 to 1) of new traces by a draw of its own."""

    def __init__(self, rate: float) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"a ratio lies between 0 and 1, not {rate}")
        self._rate = rate
        self._random = random.Random()  # noqa: S311 - chance, not secrecy

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        keep = self._random.random() < self._rate
        parent_state = get_current_span(parent_context).get_span_context().trace_state
        if not keep:
            return SamplingResult(Decision.DROP, trace_state=parent_state)
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, parent_state)

    def get_description(self) -> str:
        return f"RatioSampler{{{self._rate}}}"


class RequestSampler(Sampler):
    """Drops what begins a trace without an id for it under `trace_id_key`.

    Under a remote parent whose flag is not believed (`own_decision_key`) it decides as `root`, otherwise as `inner`.
    """

    def __init__(self, trace_id_key: str | None, own_decision_key: str | None, root: Sampler, inner: Sampler) -> None:
        self._trace_id_key = trace_id_key
        self._own_decision_key = own_decision_key
        self._root = root
        self._inner = inner

    def should_sample(self, parent_context: Context | None, *args: Any, **kwargs: Any) -> SamplingResult:
        parent = get_current_span(parent_context).get_span_context()
        chosen = self._inner
        if _is_without(self._trace_id_key, parent_context) and not parent.is_valid:
            chosen = ALWAYS_OFF
        elif self._own_decision_key is not None and parent.is_remote:
            chosen = self._root if otel_context.get_value(self._own_decision_key, parent_context) else self._inner
        return chosen.should_sample(parent_context, *args, **kwargs)

    def get_description(self) -> str:
        return f"RequestSampler{{{self._inner.get_description()}}}"


def _is_without(key: str | None, context: Context | None) -> bool:
    return key is not None and otel_context.get_value(key, context) is None


def sampler_from(
    environ: Mapping[str, str], *, trace_id_key: str | None = None, own_decision_key: str | None = None
) -> Sampler:
    """The sampler that `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` name; everything new by default."""
    name = value_of(environ, "OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    kind = name.removeprefix("parentbased_")
    if kind == "traceidratio":
        root: Sampler = RatioSampler(_ratio(environ))
    elif kind == "always_off":
        root = ALWAYS_OFF
    else:
        if kind != "always_on":
            warn_of("OTEL_TRACES_SAMPLER", name, "parentbased_always_on")
            name = "parentbased_always_on"
        root = ALWAYS_ON
    inner = root if name in {"always_on", "always_off"} else ParentBased(root)
    return RequestSampler(trace_id_key, own_decision_key, root, inner)


def _ratio(environ: Mapping[str, str]) -> float:
    text = value_of(environ, "OTEL_TRACES_SAMPLER_ARG")
    if not text:
        return 1.0
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        warn_of("OTEL_TRACES_SAMPLER_ARG", text, "1.0")
        return 1.0
    return rate


class WithoutTexts(SpanExporter):
    """Exports spans without the texts of errors: a status keeps its code, an exception its type."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([_without_texts(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
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


_ENDPOINTS: Final = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "TRACES",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "TRACES",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "METRICS",
}
"""Where a collector is, and the signal whose protocol says how that is written."""


def value_of(environ: Mapping[str, str], variable: str) -> str:
    return environ.get(variable, "").strip().lower()


def otlp_over_grpc(environ: Mapping[str, str], signal: str) -> bool:
    """Whether OTLP goes over gRPC, by the variable of a signal (`TRACES`, `METRICS`), or that of all; else by HTTP."""
    variable, protocol = _protocol(environ, signal)
    if protocol not in {"", "grpc", "http/protobuf"}:
        warn_of(variable, protocol, "http/protobuf")
    return protocol == "grpc"


def wrong_endpoints(environ: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the addresses of collectors: a sentence for each, with its variable. Over gRPC all go."""
    if value_of(environ, "OTEL_SDK_DISABLED") == "true":
        return
    for variable, signal in _ENDPOINTS.items():
        value = environ.get(variable, "").strip()
        if value and _protocol(environ, signal)[1] != "grpc" and not _is_a_url(value):
            yield f"{variable}: must be a URL, such as http://collector:4318"


def _protocol(environ: Mapping[str, str], signal: str) -> tuple[str, str]:
    variables = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    variable = next((each for each in variables if value_of(environ, each)), variables[-1])
    return variable, value_of(environ, variable)


def _is_a_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        return False


def warn_of(variable: str, value: str, instead: str) -> None:
    get_logger(__name__).warning("telemetry setting is not known", variable=variable, value=value, instead=instead)
