"""Finds out that the Computer that a call waits for is dead, within a second.

The bus says nothing about a request that was delivered and whose receiver then died. So who waits asks: the owner of
every call that is older than a moment is asked `pending`, again and again. Nobody there, or one who does not know
the call: it may have run, and nobody will answer it. An owner that is silent for most of a lease stands still
(a suspended host), and its place may be another's.
"""

import asyncio
import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Bus, Reply
from smcp_bus.errors import BusError, NoResponder, RequestTimedOut
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.internal_rows import PendingAnswer, PendingQuestion
from smcp_gateway.calls import CallTable, PendingCall
from smcp_proto.errors import Unavailable

EVERY_S: Final = 0.35
ASK_AFTER_S: Final = 0.35
"""Age of a call from which on its owner is asked: with `EVERY_S` below a second."""
BYTES_PER_S: Final = 8 * 1024 * 1024
"""What is assumed of the path to an owner: a request that is still on its way is not unknown yet."""
BATCH: Final = 1000
PATIENCE: Final = 0.75
"""Share of a lease for which an owner may be silent."""
MOST_QUESTIONS: Final = 16
"""Unanswered ones to one owner; the next is asked when one of them has ended."""
OWN_LAG_S: Final = 0.25
"""A question that ends later than this after its time says that this process stood still, not the owner."""

_log: Final = logging.getLogger("smcp_gateway.call_watch")

Owner = tuple[str, str]
"""Office and Computer."""


def ask_from(now: float, size: int) -> float:
    """From when on the owner of a request of `size` bytes that is sent now may be asked after it (loop time)."""
    return now + ASK_AFTER_S + size / BYTES_PER_S


@dataclass(slots=True)
class _Asked:
    """What is going on with one owner."""

    asked_at: float = 0.0
    """When the last question was sent (loop time)."""
    heard_at: float = 0.0
    """When the owner last said something."""
    gated_since: float | None = None
    questions: int = 0
    """That are not answered yet."""


class CallWatch:
    """Args:
    lease_s: for three quarters of it an owner may be silent.
    """

    def __init__(self, bus: Bus, calls: CallTable, *, lease_s: float) -> None:
        self._bus = bus
        self._calls = calls
        self._patience = PATIENCE * lease_s
        self._owners: dict[Owner, _Asked] = {}
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Ask, and settle what was cancelled and is overdue, until cancelled."""
        async with asyncio.TaskGroup() as questions:
            while True:
                await asyncio.sleep(EVERY_S)
                now = self._loop.time()
                self._calls.settle_overdue(now)
                due = self._due(now)
                for owner in [
                    known for known, asked in self._owners.items() if known not in due and not asked.questions
                ]:
                    del self._owners[owner]
                for owner, calls in due.items():
                    asked = self._owners.setdefault(owner, _Asked())
                    if now - asked.asked_at >= self._pause(asked):
                        asked.asked_at = now
                        for start in range(0, len(calls), BATCH):
                            asked.questions += 1
                            questions.create_task(self._ask(owner, asked, calls[start : start + BATCH], now))

    def _forget(self, due: Container[Owner]) -> None:
        for owner, asked in list(self._owners.items()):
            if owner not in due and not asked.questions:
                del self._owners[owner]

    def _pause(self, asked: _Asked) -> float:
        """Who has not answered the last question is asked less often, but is asked: it may die while it is silent."""
        return self._patience / MOST_QUESTIONS if asked.questions else 0.0

    def _due(self, now: float) -> dict[Owner, list[PendingCall]]:
        due: dict[Owner, list[PendingCall]] = {}
        for call in self._calls:
            if call.ask_from <= now:
                due.setdefault(call.owner, []).append(call)
        return due

    async def _ask(self, owner: Owner, asked: _Asked, calls: Sequence[PendingCall], now: float) -> None:
        office, computer = owner
        subject = subjects.client(office, computer, "pending")
        question = PendingQuestion(calls=[(call.agent, call.req_id) for call in calls if call.tracked])
        try:
            reply = await self._bus.request(subject, question.model_dump_json().encode(), timeout=self._patience)
        except NoResponder:
            self._lost(calls, "the Computer is gone")
        except RequestTimedOut:
            late = self._loop.time() - now - self._patience
            if asked.heard_at < now and late < OWN_LAG_S:
                self._lost(calls, "the Computer does not answer")
        except BusError:
            pass  # the connection broke: the bus ends these calls itself
        else:
            self._hear(asked, calls, reply)
        finally:
            asked.questions -= 1

    def _hear(self, asked: _Asked, calls: Sequence[PendingCall], reply: Reply) -> None:
        now = self._loop.time()
        asked.heard_at = now
        if NOT_RUN in reply.headers:
            # its connection broke, or it stood still: what it had answered may be lost
            asked.gated_since = asked.gated_since or now
            if now - asked.gated_since >= self._patience:
                self._lost(calls, "the Computer is not confirmed any more")
            return
        asked.gated_since = None
        unknown = _unknown(reply)
        forgotten = [call for call in calls if call.tracked and (call.agent, call.req_id) in unknown]
        self._lost(forgotten, "the Computer was restarted")

    def _lost(self, calls: Sequence[PendingCall], why: str) -> None:
        now = self._loop.time()
        for call in calls:
            if call.ask_from <= now:  # it is on the wire, and not between two tries
                self._calls.settle(call, Unavailable(why, details={"may_have_run": True}))


def _unknown(reply: Reply) -> set[tuple[str, str]]:
    if ERROR in reply.headers:
        return set()  # an owner that keeps no such table
    try:
        return set(PendingAnswer.model_validate_json(reply.body).unknown)
    except ValidationError:
        _log.warning("an owner's answer to `pending` cannot be read")
        return set()
