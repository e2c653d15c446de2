"""Answers in chunks, kept until they were pulled: for how long, and how many bytes of them."""

import asyncio
from typing import Final

from smcp_bus.chunks import Outgoing, is_chunk
from smcp_bus.nats.headers import is_no_responders
from smcp_bus.nats.inbox import Inbox

IDLE_S: Final = 30.0
"""How long an answer is kept of which nobody asks for anything (seconds): who would ask has most likely gone. A living
one asks, or says `here` while nothing comes or it waits for its share of its budget."""
STALE_S: Final = 6.0
"""The same where others need the room: several times the pause between two signs of life (seconds)."""


class Kept:
    """The rest of one answer; a place in the inbox."""

    def __init__(self, answers: "KeptAnswers", outgoing: Outgoing, until: float, now: float) -> None:
        self._answers = answers
        self.outgoing = outgoing
        self.until = until
        self.asked = now
        """When something of it was asked for last (loop time, seconds)."""
        self.token = b""
        self.timer: asyncio.TimerHandle | None = None

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        """As `Place.receive`: sends the chunk that is asked for, and is let go when all are there."""
        if is_chunk(head):
            self.outgoing.answer(reply, head)
            if self.outgoing.done:
                self._answers.drop(self)
            else:
                self._answers.touch(self)
        elif is_no_responders(head, body):
            # The first chunk reached nobody, so nobody can ask for the others.
            self._answers.drop(self)

    def lost(self) -> None:
        """Stays: who asked may be connected still, and go on when we are back."""


class KeptAnswers:
    """All of a process; together at most `limit` bytes, but for a single one that is larger."""

    def __init__(self, inbox: Inbox, *, limit: int) -> None:
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._kept: dict[bytes, Kept] = {}  # the one that was asked for longest ago is the first
        self.limit = limit
        self.bytes = 0

    def keep(self, outgoing: Outgoing, until: float) -> str | None:
        """Keep it until it was pulled, at most until `until` (loop time); the subject on which it is asked for.

        None where there is no room: the answers that are kept are all being pulled.
        """
        now = self._loop.time()
        size = outgoing.plan.total
        while self._kept and self.bytes + size > self.limit:
            oldest = next(iter(self._kept.values()))
            if now - oldest.asked < STALE_S:
                return None
            self.drop(oldest)
        kept = Kept(self, outgoing, until, now)
        kept.token, subject = self._inbox.enter(kept)
        self._kept[kept.token] = kept
        self.bytes += size
        self._expire(kept)
        return subject

    def touch(self, kept: Kept) -> None:
        """Somebody asked for it."""
        if kept.token in self._kept:
            kept.asked = self._loop.time()
            self._kept[kept.token] = self._kept.pop(kept.token)

    def drop(self, kept: Kept) -> None:
        """Idempotent."""
        if self._kept.pop(kept.token, None) is None:
            return
        self.bytes -= kept.outgoing.plan.total
        self._inbox.leave(kept.token)
        if kept.timer is not None:
            kept.timer.cancel()

    def _expire(self, kept: Kept) -> None:
        ends = min(kept.until, kept.asked + IDLE_S)
        if ends <= self._loop.time():
            self.drop(kept)
        else:
            kept.timer = self._loop.call_at(ends, self._expire, kept)
