"""Finds out that the Computer that a call waits for is dead, within a second.

The bus says nothing about a request that was delivered and whose receiver then died. So who waits asks: the owner of
every call that is older than a moment is asked `pending`, again and again. Nobody there, or one who does not know
the call: it may have run, and nobody will answer it. An owner that is silent for most of a lease stands still
(a suspended host), and its place may be another's.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Bus, Reply
from smcp_bus.errors import BusError, NoResponder, NotConnected
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.internal_rows import PendingAnswer, PendingQuestion
from smcp_gateway.calls import CallTable, PendingCall
from smcp_proto.errors import Unavailable

EVERY_S: Final = 0.35
ASK_AFTER_S: Final = 0.35
"""Age of a call from which on its owner is asked: with `EVERY_S` below a second."""
ANSWER_S: Final = 0.5
"""How long one question waits before the next one is asked."""
BYTES_PER_S: Final = 8 * 1024 * 1024
"""What is assumed of the path to an owner: a request that is still on its way is not unknown yet."""
BATCH: Final = 1000
PATIENCE: Final = 0.75
"""Share of a lease for which an owner may be silent."""

_log: Final = logging.getLogger("smcp_gateway.call_watch")


def ask_from(now: float, size: int) -> float:
    """From when on the owner of a request of `size` bytes that is sent now may be asked after it (loop time)."""
    return now + ASK_AFTER_S + size / BYTES_PER_S


class CallWatch:
    """Args:
    lease_s: for three quarters of it an owner may be silent.
    """

    def __init__(self, bus: Bus, calls: CallTable, *, lease_s: float) -> None:
        self._bus = bus
        self._calls = calls
        self._patience = PATIENCE * lease_s
        self._asking: set[tuple[str, str]] = set()
        self._silent_since: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Ask, and settle what was cancelled and is overdue, until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as questions:
            while True:
                await asyncio.sleep(EVERY_S)
                now = loop.time()
                self._calls.settle_overdue(now)
                due = self._due(now)
                for owner in self._silent_since.keys() - due.keys():
                    del self._silent_since[owner]
                for owner, calls in due.items():
                    if owner not in self._asking:
                        self._asking.add(owner)
                        questions.create_task(self._ask_in_batches(owner, calls, now))

    def _due(self, now: float) -> dict[tuple[str, str], list[PendingCall]]:
        due: dict[tuple[str, str], list[PendingCall]] = {}
        for call in self._calls:
            if call.ask_from <= now:
                due.setdefault(call.owner, []).append(call)
        return due

    async def _ask_in_batches(self, owner: tuple[str, str], calls: Sequence[PendingCall], now: float) -> None:
        try:
            for start in range(0, len(calls), BATCH):
                await self._ask(owner, calls[start : start + BATCH], now)
        finally:
            self._asking.discard(owner)

    async def _ask(self, owner: tuple[str, str], calls: Sequence[PendingCall], now: float) -> None:
        office, computer = owner
        question = PendingQuestion(calls=[(call.agent, call.req_id) for call in calls if call.tracked])
        try:
            reply = await self._bus.request(
                subjects.client(office, computer, "pending"), question.model_dump_json().encode(), timeout=ANSWER_S
            )
        except NoResponder:
            self._lost(calls, "the Computer is gone")
        except NotConnected:
            return  # the bus has ended these calls itself
        except BusError:
            self._silence(owner, calls, now)
        else:
            if NOT_RUN in reply.headers:
                self._silence(owner, calls, now)  # its connection broke: what it had answered may be lost
                return
            self._silent_since.pop(owner, None)
            unknown = _unknown(reply)
            self._lost(
                [call for call in calls if call.tracked and (call.agent, call.req_id) in unknown],
                "the Computer was restarted",
            )

    def _silence(self, owner: tuple[str, str], calls: Sequence[PendingCall], now: float) -> None:
        since = self._silent_since.setdefault(owner, now)
        if asyncio.get_running_loop().time() - since >= self._patience:
            self._lost([call for call in calls if call.ask_from <= since + ANSWER_S], "the Computer does not answer")

    def _lost(self, calls: Sequence[PendingCall], why: str) -> None:
        for call in calls:
            if call.ask_from <= asyncio.get_running_loop().time():
                self._calls.settle(call, Unavailable(why, details={"may_have_run": True}))


def _unknown(reply: Reply) -> set[tuple[str, str]]:
    if ERROR in reply.headers:
        return set()  # an owner that keeps no such table
    try:
        return set(PendingAnswer.model_validate_json(reply.body).unknown)
    except ValidationError:
        _log.warning("an owner's answer to `pending` cannot be read")
        return set()
