"""JSON with whole numbers of any size: the fast reader makes floats of those beyond 64 bits, the fast writer refuses
them.
"""

import asyncio
import json
import sys
from typing import Any, Final

import orjson

ASIDE_BYTES: Final = 256 * 1024
"""From this size on `read_aside` reads exactly in a thread: of 32 MiB of objects that takes longer than all else."""
_EDGE: Final = 2.0**63
"""What is below fits 64 bits; of what is above, a float may have been a whole number."""
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG: Final = b"0" * len(str(2**63))
"""A whole number beyond 64 bits has so many digits. To look for them in the text costs less than to go through many
values: of 32 MiB of small numbers a tenth."""
_PIECE: Final = 16 * 1024
"""Bytes that are looked at together: they stay in the processor's cache."""
_SHORT: Final = 2048
_BYTES_EACH: Final = 128
_MOST: Final = 4096
"""Of a text of more than `_SHORT` bytes the values are looked at first, where there are at most one for `_BYTES_EACH`
bytes, and `_MOST`. That costs less than to go through the text: a long text mostly holds long strings."""


def read(text: bytes) -> Any:
    """What the JSON says, with each whole number as it stands there.

    Raises:
        orjson.JSONDecodeError: it is no JSON, or a number in it is above what a double takes (some 308 digits).
    """
    value = orjson.loads(text)
    return _exact(text, value) if _may_need_exact(text, value) else value


async def read_aside(text: bytes) -> Any:
    """As `read`; the event loop goes on while a large text is read exactly."""
    value = orjson.loads(text)
    if not _may_need_exact(text, value):
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


def _may_need_exact(text: bytes, value: Any) -> bool:
    """Whether a whole number of the text may be another one in `value`, which the fast reader made of it."""
    if len(text) > _SHORT and _may_be_rounded(value, min(len(text) // _BYTES_EACH, _MOST)) is False:
        return False
    return _has_long_number(text)


def _has_long_number(text: bytes) -> bool:
    """Whether so many digits stand together; it may also be in a string, or behind a point."""
    if len(text) <= _PIECE:
        return _LONG in text.translate(_AS_ZEROS)
    starts = range(0, len(text), _PIECE)
    return any(_LONG in text[at : at + _PIECE + len(_LONG) - 1].translate(_AS_ZEROS) for at in starts)


def _exact(text: bytes, value: Any) -> Any:
    """What the text says, of which the fast reader said `value`."""
    if not _may_be_rounded(value, sys.maxsize):
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


def _may_be_rounded(value: Any, most: int) -> bool | None:
    """Whether a float is so large that it may have been a whole number; None: there are more than `most` values."""
    level = [value]
    while level:
        inner: list[Any] = []
        for each in level:
            kind = type(each)  # what JSON is parsed to
            if kind is float:
                if abs(each) >= _EDGE:
                    return True
            elif kind is dict or kind is list:
                most -= len(each)
                if most < 0:
                    return None
                inner.extend(each.values() if kind is dict else each)
        level = inner
    return False
