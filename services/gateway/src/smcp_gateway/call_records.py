"""Calls of Socket.IO Computers that have ended, and calls that were cancelled before they came: none runs twice.

One table for all Computers of this gateway, since the bound on its memory is the process's, and since a Computer that
leaves and joins again must not run again what it ran before. The rules are those of a native Computer (README):
results are kept for some minutes within a budget of bytes; a dropped one leaves its key.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

MAX_KEYS: Final = 100_000
"""Ended calls, and tombstones, at most; the oldest are forgotten first."""
RESULTS_S: Final = 300.0
KEYS_S: Final = 3900.0
"""Longer than the longest call may take (seconds)."""
TOMBSTONES_S: Final = 120.0
RESULTS_BYTES: Final = 64 * 1024 * 1024

CallKey = tuple[str, str, str, str]
"""(office, computer, agent, req_id)"""
CancelKey = tuple[str, str, str]
"""(office, agent, req_id): a cancel names no Computer."""


@dataclass(slots=True)
class Ended:
    """A call that has ended."""

    digest: int
    """Of tool and parameters."""
    at: float
    body: bytes | None = field(repr=False)
    """None: its result is not kept, or it ended with an error."""


class CallRecords:
    """Args:
    results_bytes: what all kept results may have together.
    results_s: how long one is kept (seconds); `keys_s` and `tombstones_s`: the same for keys and cancels. What is too
        old goes by itself, also where nothing comes any more.
    """

    def __init__(
        self,
        *,
        results_bytes: int = RESULTS_BYTES,
        results_s: float = RESULTS_S,
        keys_s: float = KEYS_S,
        tombstones_s: float = TOMBSTONES_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = results_bytes
        self._results_s = results_s
        self._keys_s = keys_s
        self._tombstones_s = tombstones_s
        self._ended: OrderedDict[CallKey, Ended] = OrderedDict()
        self._kept: OrderedDict[CallKey, Ended] = OrderedDict()
        self._bytes = 0
        self._tombstones: OrderedDict[CancelKey, float] = OrderedDict()
        self._tidies: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._ended)

    @property
    def kept(self) -> int:
        """How many results are kept now."""
        return len(self._kept)

    @property
    def buried(self) -> int:
        """How many cancels are kept now."""
        return len(self._tombstones)

    @property
    def kept_bytes(self) -> int:
        """Of all results that are kept now."""
        return self._bytes

    def find(self, key: CallKey) -> Ended | None:
        """The call, where it has ended here."""
        self._tidy()
        return self._ended.get(key)

    def end(self, key: CallKey, digest: int, body: bytes | None) -> None:
        """The call has ended with this result; None: with an error."""
        kept = body if body is not None and len(body) <= self._limit else None
        ended = self._ended[key] = Ended(digest, self._loop.time(), kept)
        if kept is not None:
            self._kept[key] = ended
            self._bytes += len(kept)
            while self._bytes > self._limit:
                self._drop()
        self._tidy_in_time()

    def bury(self, key: CancelKey) -> None:
        """A cancel: calls of that name that come later are not run."""
        self._tidy()
        self._tombstones[key] = self._loop.time()
        self._tombstones.move_to_end(key)
        self._tidy_in_time()

    def is_buried(self, key: CancelKey) -> bool:
        return key in self._tombstones

    def _tidy_in_time(self) -> None:
        """See to it that everything goes when its time is over, also where nothing comes any more."""
        due = self._due()
        if due is None or (self._tidies is not None and self._tidies.when() <= due):
            return
        if self._tidies is not None:
            self._tidies.cancel()
        self._tidies = self._loop.call_at(due, self._on_time)

    def _due(self) -> float | None:
        """When the oldest of anything is too old (loop time); None: nothing is kept."""
        due = []
        if self._kept:
            due.append(next(iter(self._kept.values())).at + self._results_s)
        if self._ended:
            due.append(next(iter(self._ended.values())).at + self._keys_s)
        if self._tombstones:
            due.append(next(iter(self._tombstones.values())) + self._tombstones_s)
        return min(due, default=None)

    def _on_time(self) -> None:
        self._tidies = None
        self._tidy()
        self._tidy_in_time()

    def _drop(self) -> None:
        """Drop the oldest result; its key stays."""
        _, ended = self._kept.popitem(last=False)
        self._bytes -= len(ended.body or b"")
        ended.body = None

    def _tidy(self) -> None:
        """Drop what is too old; all tables are in the order of their ends."""
        now = self._loop.time()
        while self._kept and next(iter(self._kept.values())).at + self._results_s <= now:
            self._drop()
        while self._ended and (
            len(self._ended) > MAX_KEYS or next(iter(self._ended.values())).at + self._keys_s <= now
        ):
            key, ended = self._ended.popitem(last=False)
            if self._kept.pop(key, None) is not None:
                self._bytes -= len(ended.body or b"")
        while self._tombstones and (
            len(self._tombstones) > MAX_KEYS or next(iter(self._tombstones.values())) + self._tombstones_s <= now
        ):
            self._tombstones.popitem(last=False)
