"""Spans as trees that are the same in every run: no ids, no times, no process ids. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Span = Mapping[str, Any]
"""As `smcp_testing.otlp_receiver` lists them."""
Tree = dict[str, Any]
_BY_REGISTRIES = re.compile(r"CONSUMER process smcp\.v1\.\{office\}\.server\.|PRODUCER send .*\.find$")
"""Registries are asked again where the first answer is late, or a Computer stays away: what is the same stands once."""

_HEX_IDS = re.compile(r"\b[0-9a-f]{32}\b")
_TIMED = {"smcp.probe", "smcp.not_run"}
"""Events that depend on how long something took."""
_COUNTED = {"jsonrpc.request.id"}
"""Attributes with numbers that depend on what happened before."""


def forest(spans: Iterable[Span], *, instance: Callable[[Span], str], known: Mapping[str, str]) -> list[Tree]:
    """The trees of all spans, siblings in the order in which they began.

    Args:
        instance: which process a span is from, in words.
        known: what to write in place of a value that differs between runs (a `req_id`, a trace id).
    """
    in_order = sorted(spans, key=lambda span: span["start_ns"])
    ids = {span["span_id"] for span in in_order}
    names = {span["span_id"]: f"{span['kind']} {span['name']}" for span in in_order}

    def tree(span: Span) -> Tree:
        linked = [names.get(link["span_id"], "a span that is not recorded") for link in span["links"]]
        return {
            "span": f"{span['kind']} {span['name']}",
            "from": f"{span['service']} {_text(instance(span), known)}",
            "status": span["status"] + (f": {span['status_message']}" if span["status_message"] else ""),
            "attributes": {name: _value(name, value, known) for name, value in sorted(span["attributes"].items())},
            "events": [event["name"] for event in span["events"] if event["name"] not in _TIMED],
            **({"links": linked} if linked else {}),
            "children": _once([tree(child) for child in in_order if child["parent_span_id"] == span["span_id"]]),
        }

    return [
        {
            "trace": _text(span["trace_id"], known),
            "parent": "none" if span["parent_span_id"] is None else "not recorded",
            **tree(span),
        }
        for span in in_order
        if span["parent_span_id"] not in ids
    ]


def _once(trees: list[Tree]) -> list[Tree]:
    return [each for at, each in enumerate(trees) if each not in trees[:at] or not _BY_REGISTRIES.match(each["span"])]


def _value(name: str, value: Any, known: Mapping[str, str]) -> Any:
    if name in _COUNTED:
        return "<number>"
    return _text(value, known) if isinstance(value, str) else value


def _text(text: str, known: Mapping[str, str]) -> str:
    for value, word in known.items():
        text = text.replace(value, f"<{word}>")
    return _HEX_IDS.sub("<id>", text)
