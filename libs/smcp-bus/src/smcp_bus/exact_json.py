"""JSON with whole numbers of any size, for what is executed or written anew.

orjson makes floats of whole numbers beyond 64 bits when it reads, and refuses them when it writes. What is only passed
on is read with orjson alone: its bytes go on as they came.
"""

import json
from typing import Any, Final

import orjson
from pydantic_core import from_json

_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG: Final = b"0" * len(str(2**63))
"""A whole number beyond 64 bits has so many digits."""


def read(text: bytes) -> Any:
    """What the JSON says, with each whole number as it stands there.

    Raises:
        orjson.JSONDecodeError: it is no JSON, or a number in it is above what a double takes (some 308 digits).
    """
    value = orjson.loads(text)
    if _LONG not in text.translate(_AS_ZEROS):
        return value
    try:
        return from_json(text)
    except ValueError:  # nested deeper than it reads: deeper than any field of a request may be
        return value


def written(value: Any, *, sort_keys: bool = False) -> bytes:
    """As JSON; also with numbers or strings that orjson does not take."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=sort_keys).encode()
