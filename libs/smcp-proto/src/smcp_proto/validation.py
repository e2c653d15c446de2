"""From what pydantic found wrong to the flat error that the caller gets."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from smcp_proto.errors import Malformed
from smcp_proto.tagged import TAG_PREFIX, UNKNOWN_TYPE

MAX_TEXT: Final = 200
"""Characters of a field's path or of a reason: a peer's own input may stand in both."""

MAX_DEPTH: Final = 128
"""Levels of objects and lists in a field. Deeper JSON is lost on the way: Python's MCP servers read 200 levels and do
not answer above that, and writers of JSON end soon after."""


def check_depth(payload: Mapping[str, Any]) -> None:
    """Let a request through whose fields are not nested deeper than `MAX_DEPTH`.

    Raises:
        Malformed: one is; `details` as in `malformed`.
    """
    for field, value in payload.items():
        if _is_container(value) and _is_deeper(value, MAX_DEPTH):
            raise _refused(_short(field), f"is nested more than {MAX_DEPTH} levels deep")


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if _is_container(inner)
        ]
        if not level:
            return False
    return True


def _is_container(value: Any) -> bool:
    return type(value) is dict or type(value) is list  # what JSON is parsed to; every request comes by here


def malformed(error: ValidationError) -> Malformed:
    """The 400 for the first thing that is wrong: `details` are `{"field": "a.b.0", "reason": str}`.

    `field` is empty where the whole is meant. Neither holds what the caller sent beyond the names of fields.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return _refused(field_of(first), reason_of(first))


def _refused(field: str, reason: str) -> Malformed:
    message = f"{field}: {reason}" if field else reason
    return Malformed(message, details={"field": field, "reason": reason})


def field_of(error: ErrorDetails) -> str:
    """The path of the field with dots; the tags of unions are no part of it."""
    parts = [str(part) for part in error["loc"]]
    if error["type"] == UNKNOWN_TYPE:
        parts.append("type")
    return _short(".".join(part for part in parts if not part.startswith(TAG_PREFIX)))


def reason_of(error: ErrorDetails) -> str:
    """Why, in words."""
    match error["type"]:
        case "missing":
            return "is missing"
        case "value_error":
            return _short(error["msg"].removeprefix("Value error, "))
        case "string_pattern_mismatch":
            return "holds a control character"
        case _:
            return _short(error["msg"])


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
