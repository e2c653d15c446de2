"""JSON with whole numbers of any size, for what is executed or written anew, and how deep it may be nested.

orjson makes floats of whole numbers beyond 64 bits when it reads, and refuses them when it writes.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson
from pydantic_core import from_json

from smcp_proto.validation import refused

_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG: Final = b"0" * len(str(2**63))
"""A whole number beyond 64 bits has so many digits."""
_BEYOND: Final = 2.0**63
_FEW: Final = 64


def read(text: bytes) -> Any:
    """Parse JSON; whole numbers of any size keep their digits.

    Raises:
        orjson.JSONDecodeError: it is no JSON, or a number in it is above what a double takes (some 308 digits).
    """
    value = orjson.loads(text)
    if not _may_lack_digits(value) or _LONG not in text.translate(_AS_ZEROS):
        return value
    try:
        return from_json(text)
    except ValueError:  # nested deeper than it reads: deeper than any field of a request may be
        return value


def _may_lack_digits(value: Any) -> bool:
    """Whether a whole number in it may have become a float. In a large text of few values they are found sooner than
    in the text itself."""
    waiting = [value]
    for _ in range(_FEW):
        if not waiting:
            return False
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, float) and abs(value) >= _BEYOND:
            return True
    return True


def written(value: Any, *, sort_keys: bool = False) -> bytes:
    """As JSON; also with numbers or strings that orjson does not take."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=sort_keys).encode()


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
            raise refused(field, f"is nested more than {MAX_DEPTH} levels deep")


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
