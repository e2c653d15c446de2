"""An OTLP receiver: keeps the spans that it is sent, over HTTP (protobuf), and lists them as JSON.

Run it as ``python -m smcp_testing.otlp_receiver [ADDRESS PORT]``; without arguments it listens on a free port of
127.0.0.1. It prints its port (`POST /v1/traces`, `GET /spans`, and Jaeger's query API, see `jaeger_api`), and ends with
SIGTERM.
"""

import asyncio
import gzip
import signal
import sys
from typing import Any

import orjson
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from smcp_testing.jaeger_api import jaeger_routes

_LARGEST_BODY = 64 * 1024 * 1024


def spans_of(request: ExportTraceServiceRequest) -> list[dict[str, Any]]:
    """The spans of an export as plain data; ids in hex, times in nanoseconds, `kind` and `status` by name."""
    return [
        {
            "resource": (resource := _attributes(of_resource.resource.attributes)),
            "service": resource.get("service.name"),
            "scope": of_scope.scope.name,
            **_span(span),
        }
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _span(span: Span) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_span_id": span.parent_span_id.hex() or None,
        "trace_state": span.trace_state,
        "status": Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        "status_message": span.status.message,
        "attributes": _attributes(span.attributes),
        "events": [
            {"name": event.name, "attributes": _attributes(event.attributes), "at_ns": event.time_unix_nano}
            for event in span.events
        ],
        "links": [{"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()} for link in span.links],
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
    }


def _attributes(pairs: "list[KeyValue] | Any") -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_plain(inner) for inner in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return getattr(value, kind)


def _app(spans: list[dict[str, Any]]) -> web.Application:
    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip" and body.startswith(b"\x1f\x8b"):
            body = gzip.decompress(body)
        export = ExportTraceServiceRequest()
        export.ParseFromString(body)
        spans.extend(spans_of(export))
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    async def listed(request: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(spans), content_type="application/json")

    app = web.Application(client_max_size=_LARGEST_BODY)
    app.add_routes([web.post("/v1/traces", receive), web.get("/spans", listed)])
    app.add_routes(jaeger_routes(spans))
    return app


async def _main(address: str = "127.0.0.1", port: str = "0") -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    spans: list[dict[str, Any]] = []
    runner = web.AppRunner(_app(spans), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, int(port)).start()
        sys.stdout.write(f"{runner.addresses[0][1]}\n")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
