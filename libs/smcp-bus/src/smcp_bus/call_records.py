"""Calls that have ended, and calls that were cancelled before they came: so that none runs twice.

Kept by whoever owns a Computer: the native Computer for itself, a gateway for all its Computers on Socket.IO, since the
bound on memory is the process's, and since a Computer that leaves and joins again must not run again what it ran.
Results are kept for some minutes within a budget of bytes; a dropped one leaves its key. A cancel that arrives before
its call leaves a tombstone. The tables live as long as the process, so a request whose sender says that it may have
arrived before is never run where its key is not known: another owner may have run it, and ended.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from xxhash import xxh3_128_digest

from smcp_bus import exact_json
from smcp_proto import tool_results
from smcp_proto.errors import Malformed, Unavailable
from smcp_proto.schemas.tools import UNKNOWN_REPEAT

MAX_KEYS: Final = 100_000
"""Ended calls, and tombstones, at most; the oldest are forgotten first."""

ANSWERED_S: Final = 0.3
"""How long the answer of a call that has ended may be on its way (seconds)."""

HELD_BEFORE_S: Final = 5.0
"""So long before a call was sent first its owner must have held the seat, to be sure that no other owner got it
(seconds). Longer than a message may take."""
RECENT_S: Final = 10.0
"""How old a repeat may be that is taken for a call which never arrived (seconds): the table forgets older ones."""

CallKey = TypeVar("CallKey", bound=Hashable)
CancelKey = TypeVar("CancelKey", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long and how much is kept, in seconds and bytes."""

    results_s: float = 300.0
    results_bytes: int = 64 * 1024 * 1024
    """What all kept results may have together."""
    keys_s: float = 3900.0
    """Longer than the longest call may take."""
    tombstones_s: float = 120.0


@dataclass(slots=True)
class Ended:
    """A call that has ended."""

    digest: bytes
    """Of tool and parameters."""
    at: float
    """Loop time."""
    body: bytes | None = field(repr=False)
    """None: its result is not kept, or it ended with an error."""


def digest_of(tool: str, params: Mapping[str, Any]) -> bytes:
    """What two requests have in common that ask for the same call: 128 bits.

    No secret depends on it: an Agent that finds two calls of the same digest is given its own result for the other.
    """
    return xxh3_128_digest(exact_json.written([tool, params], sort_keys=True))


def same_call(known: bytes, digest: bytes) -> None:
    """Refuse a second call under a key that was used.

    Raises:
        Malformed: the digests differ; it names `req_id`.
    """
    if known != digest:
        raise Malformed("this req_id was used for another call", details={"field": "req_id"})


class CallRecords(Generic[CallKey, CancelKey]):
    """What is too old goes by itself, also where nothing comes any more, until `close`.

    `CallKey` names one call of one Computer. `CancelKey` names it as a cancel does, which says no Computer.
    """

    def __init__(self, keeping: Keeping | None = None) -> None:
        self._keeping = keeping or Keeping()
        self._loop = asyncio.get_running_loop()
        self._ended: OrderedDict[CallKey, Ended] = OrderedDict()
        self._kept: OrderedDict[CallKey, Ended] = OrderedDict()
        self._bytes = 0
        self._tombstones: OrderedDict[CancelKey, float] = OrderedDict()
        self._tidies: asyncio.TimerHandle | None = None

    @property
    def kept(self) -> int:
        """How many results are kept now."""
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Of all results that are kept now."""
        return self._bytes

    def held(self) -> dict[str, int]:
        """How many keys, results and cancels it holds now."""
        return {
            "ended_calls": len(self._ended),
            "kept_results": len(self._kept),
            "kept_cancels": len(self._tombstones),
        }

    def replay(
        self,
        key: CallKey,
        cancel: CancelKey,
        *,
        tool: str,
        digest: bytes,
        repeat: bool | int | None,
        held_since: float | None,
    ) -> bytes | None:
        """What a call is answered that must not run; None: it is new, and may run.

        Args:
            repeat: the request's `a2c_repeat`.
            held_since: since when this owner has held the Computer's seat without interruption (loop time).

        Returns:
            A `CallToolResult` as JSON: the kept one, or one that says `a2c_result_expired` or `a2c_cancelled`.

        Raises:
            Malformed: the key was used for another call.
            Unavailable: a repeat of a call that is not known here and that another owner may have run
                (`details.may_have_run` and `details.unknown_repeat`).
        """
        ended = self.find(key)
        if ended is not None:
            same_call(ended.digest, digest)
            return ended.body if ended.body is not None else exact_json.written(tool_results.expired())
        if cancel in self._tombstones:
            return exact_json.written(tool_results.cancelled(tool))
        if repeat is not None and repeat is not False and not self._would_be_known(repeat, held_since):
            raise Unavailable(
                "this Computer does not know the call that is repeated; whether it ran is not known",
                details={"may_have_run": True, UNKNOWN_REPEAT: True},
            )
        return None

    def _would_be_known(self, repeat: bool | int, held_since: float | None) -> bool:
        """Whether this owner would know the call if anybody had run it."""
        if repeat is True or held_since is None or repeat / 1000 > RECENT_S:
            return False
        return held_since < self._loop.time() - repeat / 1000 - HELD_BEFORE_S

    def find(self, key: CallKey) -> Ended | None:
        """The call, where it has ended here."""
        self._tidy()
        return self._ended.get(key)

    def answered(self, key: CallKey) -> bool:
        """Whether the call ended here so long ago that its answer should have arrived."""
        ended = self._ended.get(key)
        return ended is not None and self._loop.time() - ended.at > ANSWERED_S

    def end(self, key: CallKey, digest: bytes, body: bytes | None) -> None:
        """The call has ended with this result; None: with an error."""
        self._forget(key)
        kept = body if body is not None and len(body) <= self._keeping.results_bytes else None
        ended = self._ended[key] = Ended(digest, self._loop.time(), kept)
        if kept is not None:
            self._kept[key] = ended
            self._bytes += len(kept)
            while self._bytes > self._keeping.results_bytes:
                self._drop()
        self._tidy_in_time(self._keeping.keys_s if kept is None else self._keeping.results_s)

    def bury(self, key: CancelKey) -> None:
        """A cancel: a call of that name that comes later is not run."""
        self._tidy()
        self._tombstones[key] = self._loop.time()
        self._tombstones.move_to_end(key)
        self._tidy_in_time(self._keeping.tombstones_s)

    def close(self) -> None:
        """Wait for nothing to grow too old any more, until something is kept again. Idempotent."""
        if self._tidies is not None:
            self._tidies.cancel()
            self._tidies = None

    def _tidy_in_time(self, newest: float = 0.0) -> None:
        """See to it that everything goes when its time is over, also where nothing comes any more.

        Args:
            newest: seconds until what was just kept is too old. Whatever goes before that is seen to already.
        """
        if self._tidies is not None and self._tidies.when() <= self._loop.time() + newest:
            return
        due = self._due()
        if due is None or (self._tidies is not None and self._tidies.when() <= due):
            return
        self.close()
        self._tidies = self._loop.call_at(due, self._on_time)

    def _due(self) -> float | None:
        """When the oldest of anything is too old (loop time); None: nothing is kept."""
        due = []
        if self._kept:
            due.append(next(iter(self._kept.values())).at + self._keeping.results_s)
        if self._ended:
            due.append(next(iter(self._ended.values())).at + self._keeping.keys_s)
        if self._tombstones:
            due.append(next(iter(self._tombstones.values())) + self._keeping.tombstones_s)
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

    def _forget(self, key: CallKey) -> None:
        """Key and result."""
        ended = self._ended.pop(key, None)
        if ended is not None and self._kept.pop(key, None) is not None:
            self._bytes -= len(ended.body or b"")

    def _tidy(self) -> None:
        """Drop what is too old; all tables are in the order of their ends."""
        now, keeping = self._loop.time(), self._keeping
        while self._kept and next(iter(self._kept.values())).at + keeping.results_s <= now:
            self._drop()
        while self._ended and (
            len(self._ended) > MAX_KEYS or next(iter(self._ended.values())).at + keeping.keys_s <= now
        ):
            self._forget(next(iter(self._ended)))
        while self._tombstones and (
            len(self._tombstones) > MAX_KEYS or next(iter(self._tombstones.values())) + keeping.tombstones_s <= now
        ):
            self._tombstones.popitem(last=False)
