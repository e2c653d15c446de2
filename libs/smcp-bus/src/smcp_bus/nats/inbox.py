"""The one subscription on which answers to this process arrive, and the requests that wait for them."""

import asyncio
import logging
import math
import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from smcp_bus.bus import BusError, ConnectionLost, RequestTimedOut

ROOT: Final = "_INBOX"
"""Every inbox of the system lies under it: `_INBOX.<credential>`, or `_INBOX` itself without credentials."""

_SECRET: Final = 8
"""Random bytes of a token that nobody can guess."""

_EARLY_S: Final = 0.001
"""By how much a timer of uvloop may be early (seconds): it counts whole milliseconds."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


def is_inbox(address: bytes) -> bool:
    """Whether an answer may go there.

    nats-server checks what a process publishes, not where it asks to be answered. Who answers has more rights than who
    asks (a registry may write the log of the rooms), so it must not be made to speak anywhere but into an inbox.
    """
    return address.startswith(b"_INBOX.")


class Entry(Protocol):
    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        """A message came. It must neither block nor raise."""

    def lost(self) -> None:
        """The connection broke."""


class Awaited(Generic[T]):
    """Part of an entry of the inbox: `future` ends with what is awaited, or with the `BusError` that stands for it: as
    a result, never raised, so that nothing is left to be reported where the one who waits was cancelled."""

    __slots__ = ("deadline", "future")

    def __init__(self, deadline: float = math.inf) -> None:
        """`deadline`: see `Inbox.enter`."""
        self.deadline = deadline
        self.future: asyncio.Future[T | BusError] = asyncio.get_running_loop().create_future()

    def lost(self) -> None:
        self.fail(ConnectionLost("the connection to nats-server broke"))

    def expire(self) -> None:
        self.fail(RequestTimedOut("the answer did not arrive in time"))

    def fail(self, error: BusError) -> None:
        """The outcome is this error, unless there is one."""
        if not self.future.done():
            self.future.set_result(error)


class Inbox:
    """`<prefix>.<process>.*`: token → entry.

    An entry leaves the table by `leave`, whatever became of it; what arrives for a token that has gone is dropped.
    One timer ends all that wait for too long: most end long before, and a timer of each would cost more than its entry.
    """

    def __init__(self, prefix: str, process: str, stray: Callable[[str, bytes], None]) -> None:
        """`stray` is called with reply subject and header block of a message that asks a token that has gone."""
        self._stray = stray
        self._root = f"{prefix}.{process}."
        self.subject = f"{self._root}*"
        self._cut = len(self._root)
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._expires_at = math.inf
        """When the timer runs out, at the earliest deadline (loop time)."""
        self.entries: dict[bytes, Entry] = {}

    def enter(self, entry: Entry, deadline: float = math.inf) -> tuple[bytes, str]:
        """Give `entry` a token; returns it and the subject that reaches it. An `Awaited` expires at its `deadline`."""
        self._count += 1
        # A responder learns one token. It must not be able to guess another one, and reply there.
        token = f"{self._count:x}-{os.urandom(_SECRET).hex()}"
        key = token.encode()
        self.entries[key] = entry
        if deadline < self._expires_at:
            self._expire_at(deadline)
        return key, self._root + token

    def _expire_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._expires_at = deadline
        self._timer = None
        if deadline < math.inf:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        due = asyncio.get_running_loop().time() + _EARLY_S
        waiting = [entry for entry in self.entries.values() if isinstance(entry, Awaited)]
        for entry in waiting:
            if entry.deadline <= due:
                entry.expire()
        self._expire_at(min((entry.deadline for entry in waiting if entry.deadline > due), default=math.inf))

    def leave(self, token: bytes) -> None:
        self.entries.pop(token, None)

    def lose_all(self) -> None:
        for entry in list(self.entries.values()):
            entry.lost()
        self._expire_at(math.inf)

    def receive(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        if reply and not is_inbox(reply):
            _log.warning("a message wants its answer outside of the inboxes; it gets none")
            reply = b""
        entry = self.entries.get(subject[self._cut :])
        if entry is not None:
            entry.receive(reply.decode(), head, body)
        elif reply and head:
            self._stray(reply.decode(), head)
