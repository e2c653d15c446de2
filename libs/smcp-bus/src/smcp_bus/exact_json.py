"""JSON with whole numbers of any size (orjson makes floats beyond 64 bits), for what is executed or written anew; and
how much of it a process reads: `check_cost` counts the values in its bytes (ADR 0038), `check_depth` their levels.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from itertools import accumulate
from math import inf
from typing import Any, Final
from weakref import WeakKeyDictionary

import orjson
from pydantic_core import from_json

from smcp_proto.errors import Malformed, TooLarge
from smcp_proto.validation import HUGE, refused, unreadable_field

ONE_STEP: Final = 1024 * 1024
"""Bytes that are searched, parsed or written without a pause. More is read in slices, or as `read_answer` does."""
LARGEST_READ: Final = 8 * 1024 * 1024
"""Bytes of an answer that is read in order to be changed: parsing so many takes up to 25 ms, and so does writing."""


def read(text: bytes) -> Any:
    """Parse JSON; whole numbers keep their digits, up to 4,300 of them. A number above what a double takes is infinite
    (see `check_depth`).

    Raises ValueError: it is not JSON, or nested deeper than 200 levels.
    """
    return from_json(text, allow_inf_nan=False, cache_strings="keys")


def read_object(body: object) -> dict[str, Any]:
    """The JSON object of a request: bytes as they came, or what a transport has parsed. Raises Malformed."""
    if isinstance(body, bytes):
        try:
            body = read(body) if body else {}
        except ValueError as error:
            assert isinstance(body, bytes)
            raise _not_read(body, error) from None
    if not isinstance(body, dict):
        raise Malformed("the request is not a JSON object", details={"field": ""})
    return body


def beginning(body: bytes | None) -> Mapping[str, Any]:
    """The fields of a request that is refused unread, as far as its first 64 KiB hold them; for its records."""
    with suppress(ValueError):
        fields = from_json((body or b"")[:SMALL_BYTES], allow_inf_nan=False, cache_strings="keys", allow_partial=True)
        return fields if isinstance(fields, dict) else {}
    return {}


def _not_read(body: bytes, error: ValueError) -> Malformed:
    if "recursion limit" in str(error):
        with suppress(orjson.JSONDecodeError):  # orjson reads 1,024 levels: enough to say which field it is
            if len(body) <= ONE_STEP and isinstance(fields := orjson.loads(body), dict):
                check_depth(fields)
        return Malformed(f"the request {TOO_DEEP}", details={"field": "", "reason": TOO_DEEP})
    found = unreadable_field(body) if len(body) <= ONE_STEP else None
    return refused(*found) if found else Malformed("the request is not JSON", details={"field": ""})


def written(value: Any, *, sort_keys: bool = False) -> bytes:
    """As JSON; also with numbers or strings that orjson does not take."""
    try:
        # a copy: orjson's bytes take up to 16 times their length (tracemalloc), and results are kept for long
        return b"%b" % orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=sort_keys).encode()


MAX_VALUES: Final = 200_000
"""Values of one request or answer, where nothing else is set: reading and writing so many takes some 50 ms."""
SMALL_BYTES: Final = 64 * 1024
"""What is read without a thought: it takes less than 1 ms, whatever it holds."""
_SLICE: Final = 32 * 1024
"""Bytes that are counted or read in one go; the worst take 2 ms."""
_LONG_VALUE: Final = 64
"""Bytes outside of strings that count as a value: reading a long number costs as much as a short list."""


async def check_cost(text: bytes, most: int, what: str) -> None:
    """Let JSON through that holds at most `most` values, by its bytes. Other tasks run while a long text is counted.

    A list or object and each further item in it is one value, a long number is many; strings do not count. Text that is
    not JSON may get through: parsing it costs no more.

    Raises:
        TooLarge: it holds more. `what` begins the message; `details` are `max_values`, and `size` in bytes.
    """
    if len(text) > 2 * most:  # a value and its comma have two bytes
        async for _ in _slices(text, most, what):
            pass


async def outline(text: bytes, most: int, what: str, names: Collection[str]) -> tuple[int, Any]:
    """How deep a JSON text that is passed on as it came is nested, and its value, with all strings but `names` empty.

    Raises:
        ValueError: it is not JSON.
        TooLarge: as `check_cost`.
    """
    structure, levels, deepest = bytearray(), [0], 0
    kept, longest, begun = {name: orjson.dumps(name) for name in names}, max(map(len, names)), ""
    async for pieces, in_string, rest in _slices(text, most, what):
        strings = from_json(b'["%b"]' % b'","'.join(pieces[not in_string :: 2]))
        if in_string:
            strings[0] = begun + strings[0]
        begun = strings[-1][: longest + 1]
        if kept.keys().isdisjoint(strings):
            structure += rest
        else:
            between = rest.split(b'""')
            parts = [b""] * (2 * len(between) - 1)
            parts[::2] = between
            parts[1::2] = [kept.get(each, b'""') for each in strings[: len(between) - 1]]  # the last one may go on
            structure += b"".join(parts)
        brackets = rest.translate(_STEPS, _NO_BRACKETS)
        levels = list(accumulate(brackets, lambda level, step: level + step - 1, initial=levels[-1]))
        deepest = max(deepest, *levels)
    value = orjson.loads(structure)
    await _turn()
    return deepest, value


async def read_answer(text: bytes, what: str) -> dict[str, Any]:
    """The JSON object of an answer that is to be changed; empty if it is none. The caller has counted its values.

    Raises:
        TooLarge: it has more than `LARGEST_READ` bytes.
        ValueError: it is not JSON.
    """
    if len(text) > LARGEST_READ:
        raise TooLarge(f"{what} is too large to be read here", details={"size": len(text), "limit": LARGEST_READ})
    value = read(text)
    await asyncio.sleep(0)  # others run before it is written
    return value if isinstance(value, dict) else {}


_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = bytes.maketrans(b"[]{}", b"\2\0\2\0")
_CUT_OFF: Final = re.compile(
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z|[\xc0-\xff][\x80-\xbf]{0,2}\Z"
)
"""At the end of a slice: an escape or character that goes on in the next one, or may (a half of a surrogate pair)."""
_LONGEST: Final = 12


async def _slices(text: bytes, most: int, what: str) -> AsyncIterator[tuple[list[bytes], bool, bytes]]:
    """Each slice of the text, split at quotes; whether it begins in a string; and what stands outside of strings, with
    empty strings in their place."""
    start, in_string, values = 0, False, 0
    while start < len(text):
        part = text[start : start + _SLICE].replace(b"\\\\", b"\\/").replace(b'\\"', b"\\/")  # as long as they were
        if start + len(part) < len(text) and (cut := _CUT_OFF.search(part, max(len(part) - _LONGEST, 0))):
            part = part[: cut.start()] or part
        start += len(part)
        pieces = part.split(b'"')
        outside = pieces[in_string::2]
        rest = (b'""' if in_string and outside else b"") + b'""'.join(outside)
        values += max(rest.count(b"[") + rest.count(b"{") + rest.count(b","), len(rest) // _LONG_VALUE)
        if values > most:
            raise TooLarge(f"{what} holds more than {most} values", details={"max_values": most, "size": len(text)})
        yield pieces, in_string, rest
        in_string ^= len(pieces) % 2 == 0
        await _turn()
    if in_string:
        yield [], False, b'"'


_LANES: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()


async def _turn() -> None:
    """Wait for the next slice: one of all long texts in a round of the event loop."""
    async with _LANES.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        await asyncio.sleep(0)


MAX_DEPTH: Final = 128
"""Levels of objects and lists in a field. Python's MCP servers read 200 levels, and do not answer above that."""
TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} levels deep"


def check_depth(payload: Mapping[str, Any]) -> None:
    """Raises Malformed: a field is nested deeper than `MAX_DEPTH`, or holds an infinite number."""
    for field, value in payload.items():
        if type(value) in _LOOKED_AT and (why := _fault([value])):
            raise refused(field, why)


_CONTAINERS: Final = frozenset((dict, list))
_LOOKED_AT: Final = _CONTAINERS | {float}


def _fault(level: list[Any]) -> str:
    for _ in range(MAX_DEPTH + 1):
        outer = [each for each in level if type(each) in _CONTAINERS]
        if len(outer) < len(level) and (inf in level or -inf in level):
            return HUGE
        if not outer:
            return ""
        level = [
            inner
            for each in outer
            for inner in (each.values() if type(each) is dict else each)
            if type(inner) in _LOOKED_AT
        ]
    return TOO_DEEP
