"""From what pydantic found wrong to the flat error that the caller gets."""

from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from smcp_proto.errors import Malformed
from smcp_proto.tagged import TAG_PREFIX, UNKNOWN_TYPE

MAX_TEXT: Final = 200
"""Characters of a field's path or of a reason: a peer's own input may stand in both."""


def malformed(error: ValidationError) -> Malformed:
    """The 400 for the first thing that is wrong: `details` are `{"field": "a.b.0", "reason": str}`.

    `field` is empty where the whole is meant. Neither holds what the caller sent beyond the names of fields.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field, reason = field_of(first), reason_of(first)
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
