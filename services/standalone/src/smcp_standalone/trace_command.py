"""`smcp trace`: the trace of a call as a tree, from a store with Jaeger's query API (`/api/traces`).

The store is asked by trace id (a `req_id` of 32 hex digits is one), then by the tag `smcp.req_id`. People wait for the
command, so this module imports little (`__main__` runs it without the others, and without typer).
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, Final, NamedTuple, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from smcp_proto.printable import is_url, printable, printable_json

DEFAULT_URL: Final = "http://127.0.0.1:16686"
"""Where Jaeger's own image answers."""
MAX_CHARS: Final = 200
TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_TRACES: Final = 20
"""Of one `req_id`: people choose short ones again and again."""
SINCE_S: Final = 30 * 86400
"""How far back a search by tag goes. A store that keeps traces for longer is asked by trace id."""
LONGEST_TAG: Final = 256
"""Characters of `smcp.req_id` on a span (`smcp_bus.tracing.LONGEST`)."""
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SHOWN: Final = ("gen_ai.tool.name", "smcp.computer", "smcp.mcp_server")
"""Attributes that stand in the line of a span."""


class Span(NamedTuple):
    """Names and values are as they were recorded: they are made printable where they are printed."""

    id: str
    parent: str
    """Empty: it has none."""
    name: str
    process: str
    start_us: int
    duration_us: int
    error: str | None
    """`error.type`, or a sentence; None: it did not fail."""
    attributes: Mapping[str, Any]
    events: list[tuple[int, str]]
    """Time (µs), and text to print."""


def main(arguments: Sequence[str] | None = None) -> None:
    about = "Print the trace of a call: its spans as a tree, with times, processes and errors."
    parser = argparse.ArgumentParser("smcp trace", description=about)
    parser.add_argument("req_id", metavar="REQ_ID", help="the req_id of a call, or the id of a trace")
    url, where = os.environ.get("SMCP_TRACES_URL") or DEFAULT_URL, f"[SMCP_TRACES_URL, else {DEFAULT_URL}]"
    parser.add_argument("--url", default=url, help=f"a store of traces with Jaeger's query API {where}")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    given = parser.parse_args(arguments)
    if not given.req_id or re.search(r"[\x00-\x1f\x7f-\x9f]", given.req_id):
        _fail("REQ_ID: is empty, or holds a control character; `smcp-agent call` prints that of a call", 2)
    url = _checked(given.url).rstrip("/")
    traces = _find(url, given.req_id)
    try:
        links = [f"{url}/trace/{_id(trace['traceID'], 32)}" for trace in traces]
        if given.json:
            found = [{"url": link, **trace} for link, trace in zip(links, traces, strict=True)]
            said = printable_json({"req_id": given.req_id, "traces": found})
        else:
            said = "\n\n".join("\n".join(_lines(*each)) for each in zip(traces, links, strict=True))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError):
        _fail(f"{url} answers with JSON that is not Jaeger's")
    sys.stdout.write(f"{said}\n")


def _fail(why: str, code: int = 1) -> NoReturn:
    sys.stderr.write(f"error: {printable(why)}\n")
    raise SystemExit(code)


def _checked(url: str) -> str:
    if not is_url(url) or re.search("[^!-?A-~]", url):  # a login, with its @, is not shown
        _fail(f"the URL of the store of traces: has to be like {DEFAULT_URL}, in ASCII and without a login", 2)
    return url


def _find(url: str, req_id: str) -> Sequence[Any]:
    """As the store gives them."""
    if _TRACE_ID.fullmatch(req_id) and int(req_id, 16) and (traces := _get(url, f"/api/traces/{req_id}")):
        return traces
    services = [name for name in _get(url, "/api/services") if isinstance(name, str)]
    now = time.time()
    query = {
        "tags": json.dumps({"smcp.req_id": req_id[:LONGEST_TAG]}),
        "limit": MAX_TRACES,
        "start": int((now - SINCE_S) * 1e6),
        "end": int((now + 60) * 1e6),
    }
    for service in sorted(services, key=lambda name: (not name.startswith("smcp"), name)):
        if traces := _get(url, f"/api/traces?{urlencode({**query, 'service': service})}"):
            return traces
    _fail(f"{url} has no trace of {_short(req_id)!r}: it was not sampled, is not exported yet, or is no longer kept")


def _get(url: str, path: str) -> list[Any]:
    """What is in `data` of an answer; nothing for a 404."""
    request = Request(f"{url}{path}", headers={"Accept": "application/json"})  # noqa: S310 -- http(s) only, see `_checked`
    try:
        # As our other clients: without the proxies of the environment.
        with build_opener(ProxyHandler({})).open(request, timeout=TIMEOUT_S) as response:
            body = response.read(MAX_BYTES + 1)
    except HTTPError as error:
        with error:
            body = error.read(MAX_BYTES)
        if error.code != 404:
            _fail(f"{url} answers with the status {error.code} of HTTP")
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        why = str(getattr(reason, "strerror", None) or reason)[:MAX_CHARS]
        where = "--url or SMCP_TRACES_URL names another one; only what runs with OTEL_EXPORTER_OTLP_ENDPOINT has traces"
        _fail(f"no store of traces answers at {url}: {why}; {where}; `smcp audit list --req-id` needs none")
    if len(body) > MAX_BYTES:
        _fail(f"{url} answers with more than {MAX_BYTES >> 20} MiB")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not isinstance(data := answer.get("data") or [], list):
        _fail(f"{url} does not answer with Jaeger's JSON; is it Jaeger's query port?")
    return data


def _parsed(span: Mapping[str, Any], trace_id: str, processes: Mapping[str, Any]) -> Span:
    process = processes.get(span.get("processID", "")) or {}
    attributes, parent = _tags(span.get("tags")), ""
    for reference in span.get("references") or ():
        if reference["refType"] == "CHILD_OF" and reference["traceID"] == trace_id:
            parent = parent or _id(reference["spanID"], 16)
    failed = attributes.get("error") in (True, "true") or attributes.get("otel.status_code") == "ERROR"
    events = []
    for log in span.get("logs") or ():
        fields = _tags(log.get("fields"))
        name = _short(str(fields.pop("event", "event")))
        about = (f"{_short(key)}={_short(str(value))}" for key, value in fields.items())
        events.append((int(log["timestamp"]), "  ".join([name, *about])))
    return Span(
        _id(span["spanID"], 16),
        parent,
        str(span["operationName"]),
        _process(str(process.get("serviceName", "")), _tags(process.get("tags"))),
        int(span["startTime"]),
        int(span["duration"]),
        str(attributes.get("error.type", "failed")) if failed else None,
        attributes,
        events,
    )


def _tags(tags: Any) -> dict[str, Any]:
    return {str(tag["key"]): tag["value"] for tag in tags or ()}


def _id(text: str, digits: int) -> str:
    """In hex. Jaeger leaves out leading zeros."""
    return f"{int(text, 16):0{digits}x}"


def _process(service: str, resource: Mapping[str, Any]) -> str:
    """Its service, and which of its processes, if the span says it."""
    for name in ("service.instance.id", "k8s.pod.name", "host.name", "process.pid"):
        if instance := resource.get(name):
            return f"{service} {instance}"
    return service


def _tree(
    span: Span, children: Mapping[str, Sequence[Span]], before: str = "", below: str = ""
) -> Iterator[tuple[Span, str, str]]:
    """The spans in the order of the tree, with its lines left of each, and those left of what is below it."""
    yield span, before, below
    beneath = children.get(span.id, ())
    for child in beneath:
        branch, bar = ("└ ", "  ") if child is beneath[-1] else ("├ ", "│ ")
        yield from _tree(child, children, below + branch, below + bar)


def _lines(trace: Mapping[str, Any], link: str) -> Iterator[str]:
    spans = [_parsed(span, trace["traceID"], trace["processes"]) for span in trace["spans"]]
    begin = min(span.start_us for span in spans)
    length = max(span.start_us + span.duration_us for span in spans) - begin
    errors = sum(span.error is not None for span in spans)
    processes = len({span.process for span in spans})
    began = datetime.fromtimestamp(begin / 1e6, UTC).isoformat(timespec="milliseconds")
    counts = f"spans: {len(spans)}  processes: {processes}  errors: {errors}"
    yield f"trace {_id(trace['traceID'], 32)}  {began}  {_ms(length)}  {counts}"
    by_id = {span.id: span for span in sorted(spans, key=lambda span: (span.start_us, -span.duration_us))}
    children: dict[str, list[Span]] = {}
    for span in by_id.values():  # those whose parents are a circle are in no tree
        children.setdefault(span.parent if span.parent in by_id else "", []).append(span)
    for span, before, below in (each for root in children.get("", ()) for each in _tree(root, children)):
        words = [f"{before}{_short(span.name)}", f"[{_short(span.process)}]"]
        if span.error is not None:
            words.append(f"ERROR {_short(span.error)}")
        words += [f"{name}={_short(str(span.attributes[name]))}" for name in _SHOWN if name in span.attributes]
        if span.parent and not before:
            words.append("(its parent is not in the store)")
        yield f"{_ms(span.start_us - begin):>12} {_ms(span.duration_us):>12}  {'  '.join(words)}"
        for at, said in span.events:
            yield f"{_ms(at - begin):>12} {'':>12}  {below}  · {said}"
    yield link


def _ms(us: int) -> str:
    return f"{us / 1000:.1f} ms"


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"
