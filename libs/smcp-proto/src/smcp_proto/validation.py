"""Turns pydantic's errors into the flat 400 that the caller gets, and repairs JSON with half surrogate pairs."""

import json
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any, Final

from pydantic import Discriminator, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from smcp_proto.errors import Malformed

MAX_TEXT: Final = 200
"""Characters of a field's path or of a reason: a peer's own input may stand in both."""
_TYPES: Final[Mapping[str, str]] = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}
"""What a field has to be, by pydantic's name of the error: its own texts speak of Python's types."""


def malformed(error: ValidationError) -> Malformed:
    """The 400 for the first thing that is wrong: `details` are `{"field": "a.b.0", "reason": str}`. `field` is empty
    where the whole is meant."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return refused(field_of(first), reason_of(first))


def refused(field: str, reason: str) -> Malformed:
    """The 400 for this field, whose path is cut to `MAX_TEXT`."""
    field = _short(field)
    message = f"{field}: {reason}" if field else reason
    return Malformed(message, details={"field": field, "reason": reason})


def field_of(error: ErrorDetails) -> str:
    """The path of the field with dots; the tags of unions are not part of it."""
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
        case "string_pattern_mismatch" if r"\x00" in error["msg"]:
            return "holds a control character"
        case "string_unicode":
            return HALF
        case "json_invalid":
            return "is not valid JSON" + error["msg"][error["msg"].rfind(" at line") :]
        case "extra_forbidden":
            return "is not a known field"
        case kind if kind in _TYPES:
            return f"must be {_TYPES[kind]}"
        case _:
            return _short(re.sub(r"^\w+ should ", "must ", error["msg"]))


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def type_name(value: Any) -> str:
    """The JSON type of a value, for a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
    return "an object"


TAG_PREFIX: Final = "type="
"""Of a union's tag; it stands in pydantic's locations, and `field_of` takes it out."""
UNKNOWN_TYPE: Final = "unknown_type"


def _tag_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return TAG_PREFIX + kind if isinstance(kind, str) else None


def by_type(*known: str) -> Discriminator:
    """Choose the member of a union whose tag is `type=` and the value of its `type`; `known` are the legal values."""
    return Discriminator(
        _tag_of,
        custom_error_type=UNKNOWN_TYPE,
        custom_error_message=f"is unknown or missing; known are {', '.join(known)}",
    )


CURSOR_FIELD: Final = "payload.params.cursor"


def write_cursor(position: Sequence[str | int | None]) -> str:
    """The text by which a list goes on at that position."""
    return urlsafe_b64encode(to_json(position)).decode().rstrip("=")


def read_cursor(cursor: str) -> Any:
    """What `write_cursor` was given, or what somebody else wrote. Raises ValueError: it is not a cursor."""
    raw = cursor.encode("ascii")
    return from_json(b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True))


HALF: Final = "contains an unpaired surrogate"
HUGE: Final = "holds a number above 1.8e308"


def mended(text: str | bytes) -> str:
    """The same JSON with U+FFFD in place of each half. Raises ValueError: it is not JSON otherwise."""
    try:
        whole = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)  # NaN: a ValueError
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return _whole(whole)


def unreadable_field(text: bytes) -> tuple[str, str] | None:
    """The first field of a JSON object that holds a half, or a number above what a double takes, and which of the two.
    None: there is none, or it is not an object."""
    try:
        fields = json.loads(text, parse_int=_number, parse_float=_number)
        if isinstance(fields, dict):
            found = ((_whole(name), _unreadable({name: value})) for name, value in fields.items())
            return next(((name, why) for name, why in found if why), None)
    except (ValueError, RecursionError):
        pass
    return None


def _number(text: str) -> object:
    return ... if isinf(float(text)) else 0


def _unreadable(value: object) -> str:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return HALF
    except TypeError:  # that which `_number` puts in its place
        return HUGE
    return ""


def _whole(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
