"""Jaeger's query API over HTTP, as its image serves it for its own page."""

from typing import Any

import orjson
from aiohttp import web

Spans = list[dict[str, Any]]
"""As `otlp_receiver.spans_of` gives them."""


def jaeger_routes(spans: Spans) -> list[web.RouteDef]:
    """Services, a trace by its id, and traces by service and tags. What it does not serve is answered like Jaeger's
    page: with HTML."""

    def by_tags(service: str | None, tags: str) -> Spans:
        wanted = orjson.loads(tags).items()
        found = {
            span["trace_id"]
            for span in spans
            if span["service"] == service and wanted <= {k: str(v) for k, v in span["attributes"].items()}.items()
        }
        return [span for span in spans if span["trace_id"] in found]

    def services() -> list[str]:
        return sorted({span["service"] for span in spans})

    async def trace(request: web.Request) -> web.Response:
        found = [span for span in spans if span["trace_id"] == request.match_info["id"]]
        return (
            _traces(found) if found else _missing({"data": None, "errors": [{"code": 404, "msg": "trace not found"}]})
        )

    async def search(request: web.Request) -> web.Response:
        if "service" not in request.query:
            return _json({"data": None, "errors": [{"code": 400, "msg": "parameter 'service' is required"}]}, 400)
        return _traces(by_tags(request.query["service"], request.query.get("tags", "{}")))

    async def list_services(request: web.Request) -> web.Response:
        return _json({"data": services(), "total": len(services()), "errors": None})

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>Jaeger UI</title>", content_type="text/html")

    return [
        web.get("/api/services", list_services),
        web.get("/api/traces", search),
        web.get("/api/traces/{id}", trace),
        web.get("/{anything:.*}", page),
    ]


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")


def _missing(body: Any) -> web.Response:
    return _json(body, 404)


def _traces(spans: Spans) -> web.Response:
    traces = []
    for trace_id in dict.fromkeys(span["trace_id"] for span in spans):
        of_trace = [span for span in spans if span["trace_id"] == trace_id]
        processes = {f"p{number}": span for number, span in enumerate(of_trace)}
        traces.append(
            {
                "traceID": trace_id,
                "spans": [_span(span, process) for process, span in processes.items()],
                "processes": {
                    process: {"serviceName": span["service"], "tags": _tags(span["resource"])}
                    for process, span in processes.items()
                },
            }
        )
    return _json({"data": traces, "total": 0, "errors": None})


def _span(span: dict[str, Any], process: str) -> dict[str, Any]:
    references = (
        [] if span["parent_span_id"] is None else [_reference("CHILD_OF", span["trace_id"], span["parent_span_id"])]
    )
    references += [_reference("FOLLOWS_FROM", link["trace_id"], link["span_id"]) for link in span["links"]]
    failed = {"error": True, "otel.status_code": "ERROR"} if span["status"] == "ERROR" else {}
    return {
        "traceID": span["trace_id"],
        "spanID": span["span_id"],
        "operationName": span["name"],
        "references": references,
        "startTime": span["start_ns"] // 1000,
        "duration": (span["end_ns"] - span["start_ns"]) // 1000,
        "tags": _tags({**span["attributes"], "span.kind": span["kind"].lower(), **failed}),
        "logs": [
            {"timestamp": event["at_ns"] // 1000, "fields": _tags({"event": event["name"], **event["attributes"]})}
            for event in span["events"]
        ],
        "processID": process,
    }


def _reference(kind: str, trace_id: str, span_id: str) -> dict[str, str]:
    return {"refType": kind, "traceID": trace_id, "spanID": span_id}


def _tags(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "type": "string", "value": value} for key, value in attributes.items()]
