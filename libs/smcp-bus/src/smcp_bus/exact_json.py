"""JSON with whole numbers of any size: the fast reader makes floats of those beyond 64 bits, the fast writer refuses
them.
"""

import asyncio
import json
from typing import Any, Final

import orjson

ASIDE_BYTES: Final = 256 * 1024
"""From this size on `read_aside` reads exactly in a thread: of 32 MiB of objects that takes longer than all else."""
_EDGE: Final = 2.0**63
"""What is below fits 64 bits; of what is above, a float may have been a whole number."""
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG: Final = b"0" * len(str(2**63))
"""A whole number beyond 64 bits has so many digits. To look for them in the text costs less than to go through all that
it says: of 32 MiB of small numbers a tenth."""
_PIECE: Final = 16 * 1024
"""Bytes that are looked at together: they stay in the processor's cache."""


def read(text: bytes) -> Any:
    """What the JSON says, with each whole number as it stands there.

    Raises:
        orjson.JSONDecodeError: it is no JSON, or a number in it is above what a double takes (some 308 digits).
    """
    value = orjson.loads(text)
    return _exact(text, value) if _has_long_number(text) else value


async def read_aside(text: bytes) -> Any:
    """As `read`; the event loop goes on while a large text is read exactly."""
    value = orjson.loads(text)
    if not _has_long_number(text):
        return value
    if len(text) < ASIDE_BYTES:
        return _exact(text, value)
    return await asyncio.to_thread(_exact, text, value)


def written(value: Any, *, sort_keys: bool = False) -> bytes:
    """As JSON; also with numbers or strings that the fast writer does not take."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=sort_keys).encode()


def _has_long_number(text: bytes) -> bool:
    """Whether so many digits stand together; it may also be in a string, or behind a point."""
    if len(text) <= _PIECE:
        return _LONG in text.translate(_AS_ZEROS)
    starts = range(0, len(text), _PIECE)
    return any(_LONG in text[at : at + _PIECE + len(_LONG) - 1].translate(_AS_ZEROS) for at in starts)


def _exact(text: bytes, value: Any) -> Any:
    """What the text says, of which the fast reader said `value`."""
    if not _may_be_rounded(value):
        return value
    try:
        # the reader in C lets no other thread run, but where it calls what is written in Python
        return json.loads(text, parse_int=_whole, parse_float=_fraction, object_hook=_same)
    except RecursionError:
        return value  # nested deeper than any field may be: it is refused for that


def _whole(digits: str) -> int:
    return int(digits)


def _fraction(digits: str) -> float:
    return float(digits)


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _may_be_rounded(value: Any) -> bool:
    level = [value]
    while level:
        inner: list[Any] = []
        for each in level:
            kind = type(each)  # what JSON is parsed to
            if kind is float:
                if abs(each) >= _EDGE:
                    return True
            elif kind is dict:
                inner.extend(each.values())
            elif kind is list:
                inner.extend(each)
        level = inner
    return False
