"""Spans over OTLP/HTTP: they are written as protobuf here, and sent by OpenTelemetry's exporter.

Its own way of writing makes an object of protobuf for each attribute, which costs a gateway more CPU than the rest of a
trace. Nearly all attributes are the same in many spans, so their bytes are kept. Over gRPC, and to the console, spans
go OpenTelemetry's way (`telemetry.Exported`).
"""

import gzip
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ProtoResource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, SpanFlags, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from smcp_service.telemetry import SCOPE, without_texts

LONGEST_KEPT: Final = 256
"""Characters of a value whose bytes are kept: as long as what a peer chose may be."""
_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE: Final = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


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


class OtlpSpans(SpanExporter):
    """Takes all its settings from the standard variables."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._session = _Session()
        self._sender = OTLPSpanExporter(session=self._session)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._session.body = export_request(self._resource, spans)
        return self._sender.export(())

    def shutdown(self) -> None:
        self._sender.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._sender.force_flush(timeout_millis)


def export_request(resource: Resource, spans: Sequence[ReadableSpan]) -> bytes:
    """An ExportTraceServiceRequest, without the texts of errors."""
    by_scope: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for span in spans:
        scope = getattr(span, "instrumentation_scope", SCOPE)
        by_scope[scope.name, scope.version or ""].append(_written(span))
    head = ResourceSpans(
        resource=ProtoResource(attributes=_pairs(resource.attributes)), schema_url=resource.schema_url
    ).SerializeToString()
    return _field(1, head + b"".join([_of_scope(*each) for each in by_scope.items()]))


def _of_scope(scope: tuple[str, str], spans: list[bytes]) -> bytes:
    name, version = scope
    head = ScopeSpans(scope=InstrumentationScope(name=name, version=version)).SerializeToString()
    return _field(2, head + b"".join(spans))


def _written(span: Any) -> bytes:
    context, parent = span.context, span.parent
    without_attributes = Span(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        trace_state=context.trace_state.to_header(),
        parent_span_id=b"" if parent is None else parent.span_id.to_bytes(8, "big"),
        flags=_flags(parent),
        name=span.name,
        kind=span.kind.value + 1,  # protobuf's begin with "unspecified"
        start_time_unix_nano=span.start_time,
        end_time_unix_nano=span.end_time,
        status=Status(code=span.status.status_code.value),
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
    # The order of fields is free, so attributes may stand behind all others.
    return _field(2, without_attributes + b"".join([_attribute(*pair) for pair in (span.attributes or {}).items()]))


def _attribute(name: str, value: Any) -> bytes:
    return _kept(name, value) if isinstance(value, str) and len(value) <= LONGEST_KEPT else _of_span(name, value)


def _of_span(name: str, value: Any) -> bytes:
    return _field(9, KeyValue(key=name, value=_any(value)).SerializeToString())


_kept: Final = lru_cache(maxsize=4096)(_of_span)


def _pairs(attributes: Mapping[str, Any] | None) -> list[KeyValue]:
    return [KeyValue(key=name, value=_any(value)) for name, value in (attributes or {}).items()]


def _any(value: Any) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=value)
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[_any(each) for each in value]))


def _flags(context: SpanContext | None) -> int:
    return _REMOTE if context is not None and context.is_remote else _LOCAL


def _field(number: int, body: bytes) -> bytes:
    """A field of protobuf that has a length: its number and type, the length as a varint, and the body."""
    head, size = bytearray([number << 3 | 2]), len(body)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + body
