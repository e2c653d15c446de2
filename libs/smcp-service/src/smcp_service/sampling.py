"""Which traces are recorded: the samplers that `OTEL_TRACES_SAMPLER` names, for trace ids that callers choose."""

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from smcp_service.otel_variables import value_of, warn_of


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
        """As OpenTelemetry's `Sampler`; decided by chance, not by the trace id."""
        keep = self._random.random() < self._rate
        parent_state = get_current_span(parent_context).get_span_context().trace_state
        if not keep:
            return SamplingResult(Decision.DROP, trace_state=parent_state)
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, parent_state)

    def get_description(self) -> str:
        """As OpenTelemetry's `Sampler`."""
        return f"RatioSampler{{{self._rate}}}"


class _Choice(Sampler):
    """Decides as the sampler that `_chosen` picks."""

    def __init__(self, key: str, inner: Sampler) -> None:
        self._key = key
        self._inner = inner

    @abstractmethod
    def _chosen(self, parent_context: Context | None, parent: SpanContext) -> Sampler: ...

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
        sampler = self._chosen(parent_context, get_current_span(parent_context).get_span_context())
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"{type(self).__name__}{{{self._inner.get_description()}}}"


class OwnDecision(_Choice):
    """Decides as `root` under a remote parent that the context says is not to be believed, as `inner` otherwise."""

    def __init__(self, key: str, *, root: Sampler, inner: Sampler) -> None:
        super().__init__(key, inner)
        self._root = root

    def _chosen(self, parent_context: Context | None, parent: SpanContext) -> Sampler:
        distrusted = parent.is_remote and otel_context.get_value(self._key, parent_context)
        return self._root if distrusted else self._inner


class OnlyRequests(_Choice):
    """Drops what begins a trace without an id for it under `key`; decides as `inner` about the rest."""

    def _chosen(self, parent_context: Context | None, parent: SpanContext) -> Sampler:
        unasked = not parent.is_valid and otel_context.get_value(self._key, parent_context) is None
        return ALWAYS_OFF if unasked else self._inner


def sampler_from(environ: Mapping[str, str], *, own_decision_key: str | None = None) -> Sampler:
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
    if name in {"always_on", "always_off"}:
        return root
    inner = ParentBased(root)
    return inner if own_decision_key is None else OwnDecision(own_decision_key, root=root, inner=inner)


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
