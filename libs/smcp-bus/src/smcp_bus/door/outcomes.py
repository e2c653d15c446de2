"""Requests as metrics name them: the event and how it ended, each of a small, closed set, whatever peers say."""

from collections.abc import Callable
from typing import Final

import orjson

from smcp_bus.door.types import Answer
from smcp_bus.registry_contract import is_internal
from smcp_proto.catalog import CATALOG
from smcp_proto.catalog_row import Row
from smcp_proto.errors import ErrorCode
from smcp_proto.tool_results import CANCELLED, TIMED_OUT

OK: Final = "ok"
TIMEOUT: Final = "timeout"
CALL_CANCELLED: Final = "cancelled"
BROKEN_OFF: Final = "broken_off"
OTHER: Final = "other"
"""An event that is not in the catalog, or a code that is not in the protocol."""

_CODES: Final = {int(code): str(int(code)) for code in ErrorCode}
_LONGEST: Final = 4096
"""Bytes of an answer that may be one of those that a server makes in the place of a tool's: they are short."""
_MARKS: Final = ((TIMED_OUT, TIMEOUT), (CANCELLED, CALL_CANCELLED))


def counted(add: Callable[[float, str, str], None]) -> Callable[[Row, float, Answer | None], None]:
    """For a door's `ended`: each request goes to `add` as its seconds, its event and its outcome."""

    def ended(row: Row, seconds: float, answer: Answer | None) -> None:
        add(seconds, event_of(row), outcome_of(answer))

    return ended


def event_of(row: Row) -> str:
    """The event's name; `other` for one that is not in the catalog."""
    return row.event if row.event in CATALOG or is_internal(row) else OTHER


def outcome_of(answer: Answer | None) -> str:
    """`ok`, `timeout` or `cancelled` (a tool's, by its result's `meta`), the error's code, `other`, or `broken_off`."""
    if answer is None:
        return BROKEN_OFF
    if answer.error is not None:
        return _CODES.get(answer.error, OTHER)
    body = answer.body
    if len(body) > _LONGEST or b'"a2c_' not in body:
        return OK
    return _marked(body)


def _marked(body: bytes) -> str:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return OK  # as its asker gets it: what is counted is no reason to refuse it
    meta = value.get("meta") if isinstance(value, dict) else None
    if isinstance(meta, dict):
        for mark, outcome in _MARKS:
            if mark in meta:
                return outcome
    return OK
