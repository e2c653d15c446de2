"""Bounds replies in bytes and in time, and chooses the items that an oversized reply drops (ADR 0022)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from smcp_bus import exact_json
from smcp_bus.dispatch import Call, RawJson
from smcp_bus.headers import REPLY_LIMIT
from smcp_proto.errors import ANSWER_TOO_LARGE, TooLarge
from smcp_proto.tool_results import time_limit


def giving_way(sizes: Sequence[int], room: int) -> frozenset[int]:
    """The numbers of the items of a JSON array to drop, where there are `room` bytes between its brackets: the largest,
    as few as possible; of equal ones the last. All of them where even that is not enough."""
    needed = sum(sizes) + len(sizes) - 1
    giving = set()
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], -number)):
        if needed <= room:
            break
        giving.add(number)
        needed -= sizes[number] + 1
    return frozenset(giving)


def reply_limit(call: Call, max_body: int) -> int:
    """Bytes: the limit of the caller's client, if its gateway sent it, and at most that of the bus."""
    said = call.headers.get(REPLY_LIMIT, "")
    return min(int(said), max_body) if said.isascii() and said.isdigit() and len(said) < 20 else max_body


def bounded(reply: Mapping[str, Any], max_body: int) -> RawJson:
    """The reply as JSON. Raises TooLarge: it has more bytes than the bus takes."""
    body = exact_json.written(reply)
    if len(body) > max_body:
        raise TooLarge(ANSWER_TOO_LARGE, details={"size": len(body), "limit": max_body})
    return RawJson(body)


class Budget:
    """The time that a request leaves, at most `most` seconds; `until`: when it is over, in loop time."""

    def __init__(self, call: Call, *, most: float | None = None) -> None:
        self._loop: Final = asyncio.get_running_loop()
        left = call.deadline - self._loop.time()
        limit = time_limit(left, left)
        self.until: Final = self._loop.time() + (limit if most is None else min(limit, most))

    @property
    def left(self) -> float:
        """Seconds; 0 where it is over."""
        return max(0.0, self.until - self._loop.time())
