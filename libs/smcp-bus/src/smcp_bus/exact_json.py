"""JSON with whole numbers of any size, for what is executed or written anew; and how much of it a process reads.

orjson makes floats of whole numbers beyond 64 bits when it reads, and refuses them when it writes. What JSON costs is
known before it is parsed: `check_cost` counts the values in its bytes (ADR 0038), `check_depth` their levels.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
from pydantic_core import from_json

from smcp_proto.errors import TooLarge
from smcp_proto.validation import refused

_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG: Final = b"0" * len(str(2**63))
"""A whole number beyond 64 bits has so many digits."""
_BEYOND: Final = 2.0**63
_FEW: Final = 64
SHORT: Final = 4096
"""Up to this many bytes, searching the text for long numbers is faster than walking the parsed values."""
MANY: Final = 128
"""JSON nested deeper than orjson can write (254 levels) contains `[` or `{` at least this many times."""


def read(text: bytes) -> Any:
    """Parse JSON; whole numbers of any size keep their digits.

    Raises:
        orjson.JSONDecodeError: it is no JSON, or a number in it is above what a double takes (some 308 digits).
    """
    if len(text) > SHORT and not has_many(text, b'"'):
        value = _read_strings(text)
        if not _is_plain(value):
            orjson.loads(text)
        return value
    value = orjson.loads(text)
    if len(text) <= SHORT:
        return value if _LONG not in text.translate(_AS_ZEROS) else _exact(text, value)
    return value if _is_plain(value) else _exact(text, value)


async def read_in_steps(text: bytes) -> Any:
    """The same for a long text, which takes tens of milliseconds: others are served between the steps."""
    if len(text) <= _SLICE:
        return read(text)
    strings = not has_many(text, b'"')
    value = _read_strings(text) if strings else orjson.loads(text)
    await asyncio.sleep(0)
    if not _is_plain(value):
        if strings:
            orjson.loads(text)
        else:
            value = _exact(text, value)
        await asyncio.sleep(0)
    return value


def has_many(text: bytes, mark: bytes) -> bool:
    """Whether the bracket occurs at least `MANY` times, also in strings. Much cheaper than a count if it does not."""
    at = -1
    for _ in range(MANY):
        at = text.find(mark, at + 1)
        if at < 0:
            return False
    return True


def _read_strings(text: bytes) -> Any:
    """A text of few and long strings. Of those pydantic's parser reads ten times as much as orjson in the same time;
    it keeps all digits, and takes numbers that orjson refuses."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:  # no JSON, or nested deeper than it reads: deeper than any field of a request may be
        return orjson.loads(text)


def _exact(text: bytes, value: Any) -> Any:
    if _LONG not in text.translate(_AS_ZEROS):
        return value
    try:
        return from_json(text)
    except ValueError:  # nested deeper than it reads: deeper than any field of a request may be
        return value


def _is_plain(value: Any) -> bool:
    """True only if no number in it can be read differently by two parsers. For a large text with few values,
    checking the parsed values is faster than searching the text."""
    waiting = [value]
    for _ in range(_FEW):
        if not waiting:
            return True
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, int | float) and abs(value) >= _BEYOND:
            return False
    return False


def written(value: Any, *, sort_keys: bool = False) -> bytes:
    """As JSON; also with numbers or strings that orjson does not take."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=sort_keys).encode()


MAX_VALUES: Final = 200_000
"""Values of one request or answer, where nothing else is set: reading and writing so many takes some 50 ms."""
SMALL_BYTES: Final = 64 * 1024
"""What is read without a thought: it takes less than 1 ms, whatever it holds."""
_SLICE: Final = 256 * 1024
"""Bytes that are counted in one go; the worst take 8 ms."""


async def check_cost(text: bytes, most: int, what: str) -> None:
    """Let JSON through that holds at most `most` values, by its bytes. Other tasks run while a long text is counted.

    A list or object and each further item in it is one value. What stands in strings does not count. Text that is no
    JSON may get through: a parser costs no more before its first mistake than what was counted until there.

    Raises:
        TooLarge: it holds more. `what` begins the message; `details` are `max_values`, and `size` in bytes.
    """
    if len(text) <= 2 * most:  # a value and its comma have two bytes
        return
    values = 0
    for counted in _values(text):
        values += counted
        if values > most:
            raise TooLarge(f"{what} holds more than {most} values", details={"max_values": most, "size": len(text)})
        await asyncio.sleep(0)


def _values(text: bytes) -> Iterator[int]:
    """How many values begin in each slice of the text."""
    start, in_string = 0, False
    while start < len(text):
        part = text[start : start + _SLICE]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = part[:-1] or part  # the character that it escapes is in the next slice
        start += len(part)
        if b'"' in part:
            pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
            outside = b"".join(pieces[in_string::2])
            in_string ^= len(pieces) % 2 == 0
        else:
            outside = b"" if in_string else part
        yield outside.count(b"[") + outside.count(b"{") + outside.count(b",")


MAX_DEPTH: Final = 128
"""Levels of objects and lists in a field. Deeper JSON is lost on the way: Python's MCP servers read 200 levels and do
not answer above that, and writers of JSON end soon after."""


def check_depth(payload: Mapping[str, Any]) -> None:
    """Let a request through whose fields are not nested deeper than `MAX_DEPTH`.

    Raises:
        Malformed: one is; `details` as in `malformed`.
    """
    for field, value in payload.items():
        if isinstance(value, _CONTAINERS) and _is_deeper(value, MAX_DEPTH):
            raise refused(field, f"is nested more than {MAX_DEPTH} levels deep")


_CONTAINERS: Final = (dict, list)


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return False
    return True
