"""JSON with whole numbers of any size: the fast reader makes floats of those beyond 64 bits, the fast writer refuses
them. Pure.
"""

import json
from typing import Any, Final

import orjson

_EDGE: Final = 2.0**63
"""What is below fits 64 bits; of what is above, a float may have been a whole number."""


def read(text: bytes) -> Any:
    """What the JSON says, with each whole number as it stands there.

    Raises:
        orjson.JSONDecodeError: it is no JSON, or a number in it is above what a double takes (some 308 digits).
    """
    value = orjson.loads(text)
    if not _may_be_rounded(value):
        return value
    try:
        return json.loads(text)
    except RecursionError:
        return value  # nested deeper than any field may be: it is refused for that


def written(value: Any, *, sort_keys: bool = False) -> bytes:
    """As JSON; also with numbers or strings that the fast writer does not take."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=sort_keys).encode()


def _may_be_rounded(value: Any) -> bool:
    level = [value]
    while level:
        inner: list[Any] = []
        for each in level:
            kind = type(each)  # what JSON is parsed to; every request comes by here
            if kind is float:
                if abs(each) >= _EDGE:
                    return True
            elif kind is dict:
                inner.extend(each.values())
            elif kind is list:
                inner.extend(each)
        level = inner
    return False
