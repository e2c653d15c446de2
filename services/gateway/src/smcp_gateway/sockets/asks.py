"""What one client was asked and has not acknowledged yet.

Ids of packets are our own, and so is the table: python-socketio keeps a callback for ever when nobody answers it. An
entry is gone when who asked lets go of it, however that came.
"""

import asyncio
from enum import Enum


class Fate(Enum):
    """Why a question has no answer."""

    GONE = "gone"
    """The client has disconnected, or is no member any more."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    UNREADABLE = "unreadable"
    """The client acknowledged it with something else than JSON text."""


Outcome = bytes | Fate
"""What the client acknowledged (what stands between the brackets, not parsed), or why there is nothing."""


class Asks:
    """Questions to one client by the id of their packet."""

    __slots__ = ("_last", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, answer: "asyncio.Future[Outcome]") -> int:
        """The id under which `answer` is settled; whoever enters it leaves it."""
        self._last += 1
        self._waiting[self._last] = answer
        return self._last

    def leave(self, number: int) -> None:
        """Idempotent."""
        self._waiting.pop(number, None)

    def acknowledged(self, number: int, argument: bytes | None) -> None:
        """The client's answer; one to a question that nobody waits for any more is dropped."""
        answer = self._waiting.get(number)
        if answer is not None:
            settle(answer, Fate.UNREADABLE if argument is None else argument)


def settle(answer: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    """The first outcome counts."""
    if not answer.done():
        answer.set_result(outcome)
