"""Reads traces from a store over HTTP, by the query API that Jaeger's own page uses (`/api/traces`).

Every version of Jaeger has it, and so have other stores that Grafana's Jaeger data source can read. Names and values
come as they were recorded: whoever prints them makes them printable.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_TRACES: Final = 20
"""Of one `req_id`: people choose short ones again and again."""
SINCE_S: Final = 30 * 86400
"""How far back a search by tag goes. A store that keeps traces for longer is asked by trace id."""
LONGEST_TAG: Final = 256
"""Characters of `smcp.req_id` on a span (`smcp_bus.tracing.LONGEST`)."""
TAG: Final = "smcp.req_id"
_HEX: Final = re.compile(r"[0-9a-fA-F]+")


class StoreError(Exception):
    """A sentence about the store, or about what it does not have."""


class Event(NamedTuple):
    name: str
    at_ns: int
    attributes: Mapping[str, Any]


class StoreUrlError(StoreError):
    """The address of the store cannot be used."""


class Span(NamedTuple):
    trace_id: str
    id: str
    parent: str
    """Empty: it has none."""
    name: str
    kind: str
    process: str
    start_ns: int
    duration_ns: int
    error: str | None
    """`error.type`, or a sentence; None: it did not fail."""
    attributes: Mapping[str, Any]
    events: list[Event]
    links: list[tuple[str, str]]
    """Trace and span that it is linked to."""


class TraceStore:
    """`url`: with the path below which the API is, if any. Raises StoreUrlError: it is none."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            parts = urlsplit(url)
            usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if "@" in url:
            raise StoreUrlError("the URL of the store of traces: a login in it is not supported")
        if not usable or re.search(r"[\x00-\x20\x7f]", url) or not url.isascii():
            raise StoreUrlError(f"the URL of the store of traces: {url!r} is no URL, such as http://127.0.0.1:16686")
        # As our other clients: without the proxies of the environment.
        self._open = build_opener(ProxyHandler({})).open

    def link(self, trace_id: str) -> str:
        """The page of Jaeger for a trace."""
        return f"{self.url}/trace/{trace_id}"

    def trace(self, trace_id: str) -> list[Span]:
        """Its spans; none: the store does not have it. Raises StoreError."""
        return self._spans(self._get(f"/api/traces/{trace_id}"))

    def search(self, req_id: str) -> dict[str, list[Span]]:
        """Traces by id that have a span with this `smcp.req_id`. Raises StoreError."""
        tags = json.dumps({TAG: req_id[:LONGEST_TAG]})
        now = time.time()
        micros = {"start": int((now - SINCE_S) * 1e6), "end": int((now + 60) * 1e6)}
        names = self._get("/api/services").get("data")
        services = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        for service in sorted(services, key=lambda name: (not name.startswith("smcp"), name)):
            traces: dict[str, list[Span]] = {}
            for span in self._spans(
                self._get("/api/traces", {"service": service, "tags": tags, "limit": MAX_TRACES, **micros})
            ):
                traces.setdefault(span.trace_id, []).append(span)
            if traces := {
                id_: spans
                for id_, spans in traces.items()
                if any(span.attributes.get(TAG) == req_id[:LONGEST_TAG] for span in spans)
            }:
                return traces
        return {}

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object of an answer, empty for a 404. Raises StoreError."""
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            with self._open(Request(url, headers={"Accept": "application/json"}), timeout=TIMEOUT_S) as response:  # noqa: S310 -- http(s) only, see __init__
                status, body = 200, response.read(MAX_BYTES + 1)
        except HTTPError as error:
            with error:
                status, body = error.code, error.read(MAX_BYTES)
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            why = str(getattr(reason, "strerror", None) or reason)[:200]
            hint = "--url or SMCP_TRACES_URL names another one"
            raise StoreError(f"no store of traces answers at {self.url}: {why}; {hint}") from None
        if len(body) > MAX_BYTES:
            raise StoreError(f"{self.url} answers with more than {MAX_BYTES >> 20} MiB")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if status >= 400 and status != 404 and (answer is not None or status >= 500 or status in {401, 403}):
            raise StoreError(f"{self.url} answers with the status {status} of HTTP")
        if not isinstance(answer, dict):
            raise StoreError(f"{self.url} does not answer with Jaeger's JSON; is it Jaeger's query port?")
        return {} if status == 404 else answer

    def _spans(self, answer: dict[str, Any]) -> list[Span]:
        try:
            return list(_parsed(answer.get("data") or ()))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            raise StoreError(f"{self.url} answers with JSON that is not Jaeger's") from None


def _parsed(traces: Any) -> Iterator[Span]:
    for each in traces:
        for span in each["spans"]:
            trace_id = _id(span["traceID"], 32)
            process = each["processes"].get(span.get("processID")) or {}
            attributes = _tags(span.get("tags"))
            parent, links = span.get("parentSpanID") or "", []
            parent = parent and _id(parent, 16)
            for reference in span.get("references") or ():
                of_trace, of_span = _id(reference["traceID"], 32), _id(reference["spanID"], 16)
                if reference["refType"] == "CHILD_OF" and of_trace == trace_id and not parent:
                    parent = of_span
                else:
                    links.append((of_trace, of_span))
            failed = attributes.pop("error", False) in (True, "true") or attributes.get("otel.status_code") == "ERROR"
            events = []
            for log in span.get("logs") or ():
                fields = _tags(log.get("fields"))
                events.append(Event(str(fields.pop("event", "event")), _time(log["timestamp"]) * 1000, fields))
            yield Span(
                trace_id,
                _id(span["spanID"], 16),
                parent,
                str(span["operationName"]),
                str(attributes.pop("span.kind", "internal")).upper(),
                _process(str(process.get("serviceName", "")), _tags(process.get("tags"))),
                _time(span["startTime"]) * 1000,
                _time(span["duration"]) * 1000,
                str(attributes.get("error.type", "failed")) if failed else None,
                attributes,
                events,
                links,
            )


def _time(number: Any) -> int:
    """A time or a duration. Raises ValueError, OverflowError: it has more than 64 bits."""
    if (found := int(number)).bit_length() > 64:
        raise ValueError(number)
    return found


def _tags(tags: Any) -> dict[str, Any]:
    return {str(tag["key"]): tag["value"] for tag in tags or ()}


def _id(text: str, digits: int) -> str:
    """In hex. Jaeger leaves out leading zeros."""
    if not _HEX.fullmatch(text):
        raise ValueError(text)
    return text.lower().zfill(digits)


def _process(service: str, resource: Mapping[str, Any]) -> str:
    """Its service, and which of its processes where that is told."""
    for name in ("service.instance.id", "k8s.pod.name", "host.name", "process.pid"):
        if instance := resource.get(name):
            return f"{service} {instance}"
    return service
