"""Finds out that the Computer that a call waits for is dead, within a second.

The bus says nothing about a request that was delivered and whose receiver then died. So who waits asks: the owner of
every call that is older than a moment is asked `pending`, again and again.

- Nobody there, and a moment later neither, so that a connection that broke and came back kills no call: it may have
  run, and nobody will answer it. The registry is asked whether the Computer left meanwhile.
- One there who does not know the call, and has all of it: it was restarted, or the call was lost on the way to it, as
  where a node of NATS is restarted. The call is sent once more, as a repeat: who would know it runs it then.
- Where a node of NATS left, nobody there says nothing for some seconds: whoever was connected to it looks for another
  one, and goes on with its calls meanwhile.
- The call has ended there, twice in a row, and nothing of its answer is here: it was lost on the way. The call is sent
  once more, for the answer that its owner keeps; up to `MOST_LOST` times.
- An owner that is silent for most of a lease, and asks for no part of a request either, stands still (a suspended
  host), or cannot be reached over a connection that nats-server takes for whole. Its place may be another's: the
  registry is asked whether it left meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Bus, Reply
from smcp_bus.errors import BusError, NoResponder, RequestTimedOut
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import PendingAnswer, PendingQuestion
from smcp_gateway.calls.pending import CallTable, PendingCall
from smcp_proto.errors import NotFound, SmcpError, Unavailable

EVERY_S: Final = 0.25
AWAY_S: Final = 0.4
"""For how long nobody may be there: a connection that broke is back after less, mostly. Together with `EVERY_S` and
the age from which on a call is asked after (`ASK_AFTER_S`) it is below a second."""
ELSEWHERE_S: Final = 5.0
"""For how long nobody may be there after a node of NATS left: each attempt with what is dead as well may take 2 s."""
STILL_S: Final = 16.0
"""For how long no part of a request may be asked for: an owner gives up after less, and never tells."""
BATCH: Final = 1000
PATIENCE: Final = 0.75
"""Share of a lease for which an owner may be silent."""
FIND: Final = 0.125
"""Share of a lease that the registry has to say whether a silent owner is a member still."""
FIND_GONE_S: Final = 0.1
"""For how long it is asked that of an owner that is not there: a death is told within a second."""
MOST_QUESTIONS: Final = 16
"""Unanswered ones to one owner; the next is asked when one of them has ended."""
OWN_LAG_S: Final = 0.25
"""A question that ends later than this after its time says that this process stood still, not the owner."""

_log: Final = logging.getLogger("smcp_gateway.calls.watch")

Owner = tuple[str, str]
"""Office and Computer."""


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

    def __init__(self, bus: Bus, registry: RegistryClient, calls: CallTable, *, lease_s: float) -> None:
        self._bus = bus
        self._registry = registry
        self._calls = calls
        self._patience = PATIENCE * lease_s
        self._find_s = FIND * lease_s
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
        try:
            if not await self._question(owner, asked, calls, now):
                await asyncio.sleep(AWAY_S)
                there = await self._question(owner, asked, calls, self._loop.time())
                # another question may have been answered in between
                if not there and asked.heard_at < now and not self._looks_for_a_node():
                    await self._unheard(calls, now, "the Computer is gone", FIND_GONE_S)
        finally:
            asked.questions -= 1

    def _looks_for_a_node(self) -> bool:
        """Whether a Computer that nobody answers for may only have lost its node of NATS."""
        left_at = self._bus.node_left_at
        return left_at is not None and self._loop.time() - left_at < ELSEWHERE_S

    async def _question(self, owner: Owner, asked: _Asked, calls: Sequence[PendingCall], now: float) -> bool:
        """Whether anybody is there."""
        office, computer = owner
        subject = subjects.client(office, computer, "pending")
        question = PendingQuestion(calls=[(call.agent, call.req_id) for call in calls if call.tracked])
        try:
            reply = await self._bus.request(subject, question.model_dump_json().encode(), timeout=self._patience)
        except NoResponder:
            return False
        except RequestTimedOut:
            late = self._loop.time() - now - self._patience
            heard_at = max(asked.heard_at, *(call.moved_at or 0.0 for call in calls))
            if heard_at < now and late < OWN_LAG_S:
                await self._unheard(calls, now, "the Computer does not answer", self._find_s)
        except BusError:
            pass  # the connection broke: the bus ends these calls itself
        else:
            self._hear(asked, calls, reply, now)
        return True

    async def _unheard(self, calls: Sequence[PendingCall], now: float, why: str, find_s: float) -> None:
        """Nobody answers: 404 where the registry says within `find_s` seconds that the Computer has left, else 503."""
        call = calls[0]
        try:
            found = await self._registry.find(call.office, "agent", call.agent, call.computer, timeout=find_s)
        except (SmcpError, BusError):
            left = False
        else:
            left = not found.member
        if left:
            told = {"computer": call.computer, "may_have_run": True}
            self._end(calls, now, lambda: NotFound("no such Computer in this office", details=told))
        else:
            self._lost(calls, now, why)

    def _hear(self, asked: _Asked, calls: Sequence[PendingCall], reply: Reply, asked_at: float) -> None:
        now = self._loop.time()
        asked.heard_at = now
        if NOT_RUN in reply.headers:
            # its connection broke, or it stood still: what it had answered may be lost
            asked.gated_since = asked.gated_since or now
            if now - asked.gated_since >= self._patience:
                self._lost(calls, asked_at, "the Computer is not confirmed any more")
            return
        asked.gated_since = None
        answer = _read(reply)
        unknown, ended = set(answer.unknown), set(answer.ended)
        for call in calls:
            if not call.tracked or call.ask_from > asked_at or _arrives(call, now):
                continue
            key = (call.agent, call.req_id)
            if key in unknown:
                self._calls.ask_again(call, "the Computer was restarted")
            elif key not in ended:
                call.ended_at = None
            elif call.ended_at is None:
                call.ended_at = now  # its answer may be some steps behind this one
            elif call.ended_at <= asked_at:
                self._calls.ask_again(call, "the Computer's answer was lost")

    def _lost(self, calls: Sequence[PendingCall], asked_at: float, why: str) -> None:
        self._end(calls, asked_at, lambda: Unavailable(why, details={"may_have_run": True}))

    def _end(self, calls: Sequence[PendingCall], asked_at: float, verdict: Callable[[], SmcpError]) -> None:
        for call in calls:
            if call.ask_from <= asked_at:  # it was on the wire then, and still is: not between two tries
                self._calls.settle(call, verdict())


def _arrives(call: PendingCall, now: float) -> bool:
    """Whether its owner has only parts of it yet, and goes on asking for more."""
    return call.moved_at is not None and now - call.moved_at < STILL_S


def _read(reply: Reply) -> PendingAnswer:
    if ERROR in reply.headers:
        return PendingAnswer(unknown=[])  # an owner that keeps no such table
    try:
        return PendingAnswer.model_validate_json(reply.body)
    except ValidationError:
        _log.warning("an owner's answer to `pending` cannot be read")
        return PendingAnswer(unknown=[])
