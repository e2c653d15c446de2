"""Acks that somebody waits for, on one connection.

python-socketio's own `call()` keeps its callback after a time-out and does not notice that the socket broke; this
table does not: whoever opened an entry closes it, whatever happened, and a broken connection settles all.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Acked:
    """The ack came, with these arguments."""

    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection broke before the ack came. `begun` is False where nothing was done for it."""

    reason: str
    begun: bool = True


class Pending:
    """One awaited ack. Only the first outcome counts."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Acked | Broken] = asyncio.get_running_loop().create_future()

    def settle(self, *args: Any) -> None:
        """The ack came, with these arguments."""
        if not self.future.done():
            self.future.set_result(Acked(args))

    def break_off(self, broken: Broken) -> None:
        """There will be no ack."""
        if not self.future.done():
            self.future.set_result(broken)


class PendingAcks:
    """The table of one connection. After `break_off` every new entry is broken at once."""

    def __init__(self) -> None:
        self._waiting: set[Pending] = set()
        self._broken: Broken | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def open(self) -> Iterator[Pending]:
        """An entry that lives as long as the block."""
        pending = Pending()
        if self._broken is not None:
            pending.break_off(self._broken)
        self._waiting.add(pending)
        try:
            yield pending
        finally:
            self._waiting.discard(pending)
            pending.future.cancel()

    def break_off(self, reason: str, *, begun: bool = True) -> None:
        """Settle all entries, present and to come, as broken."""
        self._broken = Broken(reason, begun)
        for pending in self._waiting:
            pending.break_off(self._broken)
