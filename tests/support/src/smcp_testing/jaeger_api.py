"""Jaeger's query API over HTTP, as its image serves it: v3 (OTLP as JSON) and the older one of its own page."""

from typing import Any

import orjson
from aiohttp import web

Spans = list[dict[str, Any]]
"""As `otlp_receiver.spans_of` gives them."""


def jaeger_routes(spans: Spans, *, v3: bool = True, legacy: bool = True) -> list[web.RouteDef]:
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
            _legacy(found) if found else _missing({"data": None, "errors": [{"code": 404, "msg": "trace not found"}]})
        )

    async def search(request: web.Request) -> web.Response:
        if "service" not in request.query:
            return _json({"data": None, "errors": [{"code": 400, "msg": "parameter 'service' is required"}]}, 400)
        return _legacy(by_tags(request.query["service"], request.query.get("tags", "{}")))

    async def trace_v3(request: web.Request) -> web.Response:
        found = [span for span in spans if span["trace_id"] == request.match_info["id"]]
        return _v3(found) if found else _missing({"error": {"httpCode": 404, "message": "trace not found"}})

    async def search_v3(request: web.Request) -> web.Response:
        return _v3(by_tags(request.query["query.service_name"], request.query.get("query.attributes", "{}")))

    async def services_v1(request: web.Request) -> web.Response:
        return _json({"data": services(), "total": len(services()), "errors": None})

    async def services_v3(request: web.Request) -> web.Response:
        return _json({"services": services()})

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>Jaeger UI</title>", content_type="text/html")

    served: list[web.RouteDef] = []
    if v3:
        served += [
            web.get("/api/v3/services", services_v3),
            web.get("/api/v3/traces", search_v3),
            web.get("/api/v3/traces/{id}", trace_v3),
        ]
    if legacy:
        served += [
            web.get("/api/services", services_v1),
            web.get("/api/traces", search),
            web.get("/api/traces/{id}", trace),
        ]
    return [*served, web.get("/{anything:.*}", page)]


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")


def _missing(body: Any) -> web.Response:
    return _json(body, 404)


def _legacy(spans: Spans) -> web.Response:
    traces = []
    for trace_id in dict.fromkeys(span["trace_id"] for span in spans):
        of_trace = [span for span in spans if span["trace_id"] == trace_id]
        processes = {f"p{number}": span for number, span in enumerate(of_trace)}
        traces.append(
            {
                "traceID": trace_id,
                "spans": [_legacy_span(span, process) for process, span in processes.items()],
                "processes": {
                    process: {"serviceName": span["service"], "tags": _tags(span["resource"])}
                    for process, span in processes.items()
                },
            }
        )
    return _json({"data": traces, "total": 0, "errors": None})


def _legacy_span(span: dict[str, Any], process: str) -> dict[str, Any]:
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


def _v3(spans: Spans) -> web.Response:
    return _json({"result": {"resourceSpans": [_otlp(span) for span in spans]}})


def _otlp(span: dict[str, Any]) -> dict[str, Any]:
    return {
        "resource": {"attributes": _pairs(span["resource"])},
        "scopeSpans": [
            {
                "scope": {"name": span["scope"]},
                "spans": [
                    {
                        "traceId": span["trace_id"],
                        "spanId": span["span_id"],
                        "parentSpanId": span["parent_span_id"] or "",
                        "name": span["name"],
                        "kind": ("INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER").index(span["kind"]) + 1,
                        "startTimeUnixNano": str(span["start_ns"]),
                        "endTimeUnixNano": str(span["end_ns"]),
                        "attributes": _pairs(span["attributes"]),
                        "events": [
                            {
                                "name": event["name"],
                                "timeUnixNano": str(event["at_ns"]),
                                "attributes": _pairs(event["attributes"]),
                            }
                            for event in span["events"]
                        ],
                        "links": [{"traceId": link["trace_id"], "spanId": link["span_id"]} for link in span["links"]],
                        "status": {"code": 2} if span["status"] == "ERROR" else {},
                    }
                ],
            }
        ],
    }


def _pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}
