"""Spans over OTLP/HTTP: they are written as protobuf here, and sent by OpenTelemetry's exporter.

OpenTelemetry's encoder makes a protobuf object for each attribute, which costs more CPU than the rest of a trace. Most
attributes are the same in many spans, so their bytes are kept. Texts of errors are left out: they quote arguments.
"""

import gzip
import logging
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope as ProtoScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ProtoResource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, SpanFlags
from opentelemetry.proto.trace.v1.trace_pb2 import Status as ProtoStatus
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

SCOPE: Final = InstrumentationScope("smcp_bus")
LONGEST_KEPT: Final = 256
"""Characters of a value whose bytes are kept: as long as what a peer chose may be."""
_FIXED: Final = Struct("<2s16s2s8ssQsQ2sI")
"""What each span has, with the numbers and types of the fields: trace, span, start, end and flags."""
_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE: Final = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


def without_texts(event: Event) -> dict[str, Any]:
    texts = {"exception.message", "exception.stacktrace"}
    return {name: value for name, value in (event.attributes or {}).items() if name not in texts}


class _Session(requests.Session):
    """Sends `body` in the place of what the exporter has written, which is nothing: it is given no spans."""

    body = b""

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **more: Any) -> requests.Response:
        match {**self.headers, **(more.get("headers") or {})}.get("Content-Encoding"):
            case "gzip":
                more["data"] = gzip.compress(self.body)
            case "deflate":
                more["data"] = zlib.compress(self.body)
            case _:
                more["data"] = self.body
        return super().request(method, url, *args, **more)


class OtlpHttpSpanExporter(SpanExporter):
    def __init__(self, resource: Resource) -> None:
        self._session = _Session()
        self._inner = OTLPSpanExporter(session=self._session)
        self._resource = resource
        self._has_logged = False
        """A failure was logged since the last success: the exporter logs several of each batch."""
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(self._is_first)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._session.body = export_request(self._resource, spans)
        result = self._inner.export(())
        self._has_logged &= result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def _is_first(self, _: logging.LogRecord) -> bool:
        had_logged, self._has_logged = self._has_logged, True
        return not had_logged


def export_request(resource: Resource, spans: Sequence[ReadableSpan]) -> bytes:
    """An ExportTraceServiceRequest, without the texts of errors."""
    scopes: dict[InstrumentationScope | None, list[bytes]] = {}  # None: ours, which is not looked up for each span
    for span in spans:
        scopes.setdefault(getattr(span, "instrumentation_scope", None), []).append(_written(span))
    parts = [
        ResourceSpans(
            resource=ProtoResource(attributes=_pairs(resource.attributes)), schema_url=resource.schema_url
        ).SerializeToString()
    ]
    for scope, of_scope in ((scope or SCOPE, of_scope) for scope, of_scope in scopes.items()):
        said = ProtoScope(name=scope.name, version=scope.version or "", attributes=_pairs(scope.attributes))
        head = ScopeSpans(scope=said, schema_url=scope.schema_url or "").SerializeToString()
        parts.append(_field(2, head + b"".join(of_scope)))
    return _field(1, b"".join(parts))


def _written(span: Any) -> bytes:
    context, parent = span.context, span.parent
    parts = [
        _named(span.name, span.kind, span.status.status_code),
        _FIXED.pack(
            *(b"\x0a\x10", context.trace_id.to_bytes(16, "big"), b"\x12\x08", context.span_id.to_bytes(8, "big")),
            *(b"\x39", span.start_time, b"\x41", span.end_time, b"\x85\x01", _flags(parent)),
        ),
    ]
    if parent is not None:
        parts.append(_field(4, parent.span_id.to_bytes(8, "big")))
    if context.trace_state:
        parts.append(_field(3, context.trace_state.to_header().encode()))
    if span.events or span.links:
        parts.append(_with_others(span))
    parts += [
        _kept(name, value) if type(value) is str and len(value) <= LONGEST_KEPT else _of_span(name, value)
        for name, value in (span.attributes or {}).items()
    ]
    return _field(2, b"".join(parts))


@lru_cache(maxsize=1024)
def _named(name: str, kind: Any, status: Any) -> bytes:
    # protobuf's kinds begin with "unspecified"
    said = ProtoStatus(code=status.value)
    written: bytes = Span(name=_text(name), kind=kind.value + 1, status=said).SerializeToString()
    return written


def _with_others(span: Any) -> bytes:
    written: bytes = Span(
        events=[
            Span.Event(name=event.name, time_unix_nano=event.timestamp, attributes=_pairs(without_texts(event)))
            for event in span.events
        ],
        links=[
            Span.Link(
                trace_id=link.context.trace_id.to_bytes(16, "big"),
                span_id=link.context.span_id.to_bytes(8, "big"),
                attributes=_pairs(link.attributes),
                flags=_flags(link.context),
            )
            for link in span.links
        ],
    ).SerializeToString()
    return written


def _of_span(name: str, value: Any) -> bytes:
    if isinstance(value, str):  # an object of protobuf costs several times as much
        return _field(9, _field(1, name.encode()) + _field(2, _field(1, _text(value).encode())))
    return _field(9, KeyValue(key=name, value=_any(value)).SerializeToString())


_kept: Final = lru_cache(maxsize=4096)(_of_span)


def _pairs(attributes: Mapping[str, Any] | None) -> list[KeyValue]:
    return [KeyValue(key=name, value=_any(value)) for name, value in (attributes or {}).items()]


def _any(value: Any) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int() if -(1 << 63) <= value < 1 << 63:  # a larger one is written as text
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case list() | tuple():
            return AnyValue(array_value=ArrayValue(values=[_any(each) for each in value]))
        case _:
            return AnyValue(string_value=_text(str(value)))


def _text(text: str) -> str:
    """Without halves of surrogate pairs: one of a peer would cost all spans of an export."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _flags(context: SpanContext | None) -> int:
    return _REMOTE if context is not None and context.is_remote else _LOCAL


def _field(number: int, body: bytes) -> bytes:
    """A field of protobuf that has a length: its number and type, the length as a varint, and the body."""
    size = len(body)
    if size <= 0x7F:
        return b"%c%c%b" % (number << 3 | 2, size, body)
    head = bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + body
