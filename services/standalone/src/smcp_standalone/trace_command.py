"""`smcp trace`: the trace of a call from a store with Jaeger's query API, as a tree.

The store is asked by trace id (a `req_id` of 32 hex digits is one), then by the tag `smcp.req_id`. People wait for the
command, so this module imports little (`__main__` runs it without the others, and without typer).
"""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from smcp_proto.printable import printable, printable_json
from smcp_standalone.jaeger_client import Span, StoreError, StoreUrlError, TraceStore

DEFAULT_URL: Final = "http://127.0.0.1:16686"
"""Where Jaeger's own image answers."""
MAX_CHARS: Final = 200
MAX_INDENT: Final = 120
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SHOWN: Final = ("gen_ai.tool.name", "smcp.computer", "smcp.mcp_server")
"""Attributes that stand in the line of a span."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("smcp trace", add_help=False)  # the help is in `smcp_standalone.main`
    parser.add_argument("req_id", metavar="REQ_ID", nargs="?")
    parser.add_argument("--url", default=os.environ.get("SMCP_TRACES_URL") or DEFAULT_URL)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.req_id is None:
        sys.stderr.write(
            "error: say which call: `smcp-agent call` prints its REQ_ID, and `smcp trace REQ_ID` shows it\n"
        )
        raise SystemExit(2)
    if not given.req_id or re.search(r"[\x00-\x1f\x7f-\x9f]", given.req_id):
        parser.error("REQ_ID: is empty, or holds a control character")
    try:
        store = TraceStore(given.url)
        traces = _find(store, given.req_id)
    except StoreError as error:
        sys.stderr.write(f"error: {printable(str(error))}\n")
        raise SystemExit(2 if isinstance(error, StoreUrlError) else 1) from None
    if given.json:
        found = [
            {"trace_id": id_, "url": store.link(id_), "spans": [_as_json(row) for row in _rows(spans)]}
            for id_, spans in traces.items()
        ]
        said = printable_json({"req_id": given.req_id, "traces": found})
    else:
        said = "\n\n".join("\n".join(_lines(id_, spans, store.link(id_))) for id_, spans in traces.items())
    sys.stdout.write(f"{said}\n")


def _find(store: TraceStore, req_id: str) -> dict[str, list[Span]]:
    if _TRACE_ID.fullmatch(req_id) and int(req_id, 16) and (spans := store.trace(req_id)):
        return {req_id: spans}
    if traces := store.search(req_id):
        return traces
    raise StoreError(
        f"{store.url} has no trace of {_short(req_id)!r}: it was not sampled, is not exported yet, or is no longer kept"
    )


class _Row(NamedTuple):
    """A span at its place in the tree."""

    span: Span
    depth: int
    before: str
    """The lines of the tree left of it."""
    below: str
    """The same for the lines below it."""
    remark: str = ""
    """Why it stands at the top although it has a parent."""


def _rows(spans: Iterable[Span]) -> list[_Row]:
    """In the order of the tree."""
    by_id = {span.id: span for span in sorted(spans, key=lambda span: (span.start_ns, -span.duration_ns))}
    children: dict[str, list[Span]] = {}
    for span in by_id.values():
        children.setdefault(span.parent if span.parent in by_id else "", []).append(span)
    rows: list[_Row] = []
    shown: set[str] = set()
    for root in (*children.pop("", []), *by_id.values()):  # the latter for those in a circle of parents
        why = "its parents are a circle" if root.parent in by_id else "its parent is not in the store"
        todo = [] if root.id in shown else [_Row(root, 0, "", "", why if root.parent else "")]
        while todo:
            row = todo.pop()
            rows.append(row)
            shown.add(row.span.id)
            beneath = [each for each in children.get(row.span.id, ()) if each.id not in shown]
            for at, child in reversed(list(enumerate(beneath))):
                last = at == len(beneath) - 1
                branch, bar = ("└ ", "  ") if last else ("├ ", "│ ")
                indent = row.below[:MAX_INDENT]
                todo.append(_Row(child, row.depth + 1, indent + branch, indent + bar))
    return rows


def _as_json(row: _Row) -> dict[str, Any]:
    span = row.span
    return {
        "depth": row.depth,
        "name": span.name,
        "kind": span.kind,
        "process": span.process,
        "span_id": span.id,
        "parent_span_id": span.parent or None,
        "start": _time(span.start_ns),
        "duration_ms": round(span.duration_ns / 1e6, 3),
        "error": span.error,
        "attributes": span.attributes,
        "events": [
            {"at": _time(event.at_ns), "name": event.name, "attributes": event.attributes} for event in span.events
        ],
        "links": [{"trace_id": trace_id, "span_id": span_id} for trace_id, span_id in span.links],
    }


def _lines(trace_id: str, spans: Sequence[Span], link: str) -> Iterator[str]:
    begin = min(span.start_ns for span in spans)
    length = max(span.start_ns + span.duration_ns for span in spans) - begin
    errors = sum(span.error is not None for span in spans)
    processes = len({span.process for span in spans})
    yield (
        f"trace {_short(trace_id)}  {_time(begin)}  {_ms(length)}  "
        f"spans: {len(spans)}  processes: {processes}  errors: {errors}"
    )
    for row in _rows(spans):
        span = row.span
        words = [f"{row.before}{_short(span.name)}", f"[{_short(span.process)}]"]
        if span.error is not None:
            words.append(f"ERROR {_short(span.error)}")
        words += [f"{name}={_short(str(span.attributes[name]))}" for name in _SHOWN if name in span.attributes]
        if row.remark:
            words.append(f"({row.remark})")
        yield f"{_ms(span.start_ns - begin):>12} {_ms(span.duration_ns):>12}  {'  '.join(words)}"
        for event in span.events:
            about = "".join(f"  {_short(name)}={_short(str(value))}" for name, value in event.attributes.items())
            yield f"{_ms(event.at_ns - begin):>12} {'':>12}  {row.below}  · {_short(event.name)}{about}"
        for linked_trace, linked_span in span.links:
            where = "" if linked_trace == trace_id else f" of trace {_short(linked_trace)}"
            yield f"{'':>12} {'':>12}  {row.below}  → span {_short(linked_span)}{where}"
    yield link


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"


def _time(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "at an impossible time"


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"
