"""Traces, set up from the standard `OTEL_*` variables of OpenTelemetry.

Nothing is recorded or exported unless `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
`OTEL_TRACES_EXPORTER` is set (and `OTEL_SDK_DISABLED` is not ``true``). Two things differ from the SDK's own
set-up, because here the caller chooses the trace id (it follows from the request's id):

- the id of a new trace is taken from the OpenTelemetry context, under a key that the service gives;
- ratio samplers draw a number of their own instead of looking at the trace id. As such a draw cannot be repeated,
  it is made once, where the trace begins; `traceidratio` is therefore the same as `parentbased_traceidratio`.

A value that the specification does not know is warned about and replaced by the default, as it asks.
"""

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
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

    `service` is the name where `OTEL_SERVICE_NAME` does not say another. A new trace gets the id (an int) that the
    current OpenTelemetry context has under `trace_id_key`, if any. Where the context has something true under
    `own_decision_key`, a remote parent's sampled flag is not believed, and the sampler decides as for a new trace.
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
        sampler=sampler_from(environ, own_decision_key=own_decision_key),
        resource=_resource(service),
        id_generator=ContextIdGenerator(trace_id_key),
        shutdown_on_exit=False,
    )
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
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
        # The flag would tell others that they may sample by the id.
        return self._key is None


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


class OwnDecision(Sampler):
    """Decides as `root` under a remote parent that the context says is not to be believed, as `inner` otherwise."""

    def __init__(self, key: str, *, root: Sampler, inner: Sampler) -> None:
        self._key = key
        self._root = root
        self._inner = inner

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
        parent = get_current_span(parent_context).get_span_context()
        distrusted = parent.is_remote and otel_context.get_value(self._key, parent_context)
        sampler = self._root if distrusted else self._inner
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"OwnDecision{{{self._inner.get_description()}}}"


def sampler_from(environ: Mapping[str, str], *, own_decision_key: str | None = None) -> Sampler:
    """The sampler that `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` name; everything new by default."""
    name = _value(environ, "OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    kind = name.removeprefix("parentbased_")
    if kind == "traceidratio":
        root: Sampler = RatioSampler(_ratio(environ))
    elif kind == "always_off":
        root = ALWAYS_OFF
    else:
        if kind != "always_on":
            _warn("OTEL_TRACES_SAMPLER", name, "parentbased_always_on")
            name = "parentbased_always_on"
        root = ALWAYS_ON
    if name in {"always_on", "always_off"}:
        return root
    inner = ParentBased(root)
    return inner if own_decision_key is None else OwnDecision(own_decision_key, root=root, inner=inner)


def _ratio(environ: Mapping[str, str]) -> float:
    text = _value(environ, "OTEL_TRACES_SAMPLER_ARG")
    if not text:
        return 1.0
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        _warn("OTEL_TRACES_SAMPLER_ARG", text, "1.0")
        return 1.0
    return rate


def _exporters(environ: Mapping[str, str]) -> list[SpanExporter]:
    if _value(environ, "OTEL_SDK_DISABLED") == "true":
        return []
    names = _value(environ, "OTEL_TRACES_EXPORTER")
    if not names:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        names = "otlp" if any(_value(environ, variable) for variable in endpoints) else "none"
    exporters: list[SpanExporter] = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name == "otlp":
            exporters.append(_otlp_exporter(environ))
        elif name == "console":
            exporters.append(ConsoleSpanExporter())
        elif name not in {"none", ""}:
            _warn("OTEL_TRACES_EXPORTER", name, "none")
    return exporters


def _otlp_exporter(environ: Mapping[str, str]) -> SpanExporter:
    protocol = (
        _value(environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or _value(environ, "OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    # The exporters bring requests or grpc along: who does not export does not pay for importing them.
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter()
    if protocol != "http/protobuf":
        _warn("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, "http/protobuf")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter as HttpExporter,
    )

    return HttpExporter()


def _resource(service: str) -> Resource:
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


def _value(environ: Mapping[str, str], variable: str) -> str:
    return environ.get(variable, "").strip().lower()


def _warn(variable: str, value: str, instead: str) -> None:
    get_logger(__name__).warning("telemetry setting is not known", variable=variable, value=value, instead=instead)
