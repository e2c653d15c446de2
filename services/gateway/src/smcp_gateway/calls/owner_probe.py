"""Asks the owners of Computers after the calls that wait for them: a dead owner is noticed within a second.

The bus does not say that a receiver died after a request was delivered. So the owner of each call that is older than a
moment is asked `pending`, again and again (ADR 0003). What it learns ends a call with 503 and `details.may_have_run`,
or with 404 where the registry says that the Computer has left. `details.gone` says that a repeat would find nobody:
nobody serves the subject, or the owner is silent, or not confirmed, for most of a lease. It is left
out just after a node of NATS has gone: the owner may be connecting to another one while its calls go on.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import OWN_LAG_S, BusError, NoResponder, Reply, RequestTimedOut
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import PendingAnswer, PendingQuestion
from smcp_gateway.calls.table import STILL_S, CallTable, PendingCall
from smcp_proto.errors import GONE, SmcpError, Unavailable, no_such_computer

EVERY_S: Final = 0.25
"""How often owners are asked after calls."""
AWAY_S: Final = 0.4
"""For how long nobody may be there: a connection that broke is mostly back after less. Together with `EVERY_S` and
`ASK_AFTER_S` it is below a second."""
OTHER_NODE_S: Final = 5.0
"""For how long after a node of NATS left an owner may look for another one: each attempt may take 2 s."""
FIND_S: Final = 0.1
"""How long the registry has to say whether a silent owner is still a member: callers hear of a death in a second."""
PATIENCE: Final = 0.75
"""Share of a lease for which an owner may be silent."""
MOST_QUERIES: Final = 16
"""Unanswered ones to one owner. More than one, since a query gets lost with a node of NATS."""
MAY_HAVE_RUN: Final[dict[str, object]] = {"may_have_run": True}

_log: Final = logging.getLogger("smcp_gateway.calls.owner_probe")


@dataclass(slots=True)
class _Owner:
    asked_at: float = 0.0
    """When the last query was sent (loop time)."""
    heard_at: float = 0.0
    gated_since: float | None = None
    queries: int = 0
    """That are not answered yet."""


class OwnerProbe:
    def __init__(self, bus: Bus, registry: RegistryClient, calls: CallTable, *, lease_s: float) -> None:
        self._bus = bus
        self._registry = registry
        self._calls = calls
        self._patience = PATIENCE * lease_s
        self._owners: dict[tuple[str, str], _Owner] = {}
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Ask, and settle what was cancelled and is overdue, until cancelled."""
        async with asyncio.TaskGroup() as queries:
            while True:
                await asyncio.sleep(EVERY_S)
                now = self._loop.time()
                self._calls.beat()
                self._calls.settle_overdue(now)
                due: dict[tuple[str, str], list[PendingCall]] = {}
                for call in self._calls:
                    if call.ask_from <= now:
                        due.setdefault((call.office, call.computer), []).append(call)
                self._owners = {key: owner for key, owner in self._owners.items() if key in due or owner.queries}
                for key, calls in due.items():
                    owner = self._owners.setdefault(key, _Owner())
                    # one that is silent is asked less often, but is asked: it may die meanwhile
                    if now - owner.asked_at >= (self._patience / MOST_QUERIES if owner.queries else 0.0):
                        owner.asked_at = now
                        owner.queries += 1
                        queries.create_task(self._ask(owner, calls, now))

    async def _ask(self, owner: _Owner, calls: Sequence[PendingCall], now: float) -> None:
        try:
            if not await self._is_there(owner, calls, now):
                await asyncio.sleep(AWAY_S)
                there = await self._is_there(owner, calls, self._loop.time())
                # another query may have been answered in between
                if not there and owner.heard_at < now:
                    left_at = self._bus.node_left_at
                    if left_at is not None and self._loop.time() - left_at < OTHER_NODE_S:  # it may look for a node
                        self._end(calls, now, Unavailable("the Computer is gone", details=MAY_HAVE_RUN))
                    else:
                        await self._end_gone(calls, now, "the Computer is gone")
        finally:
            owner.queries -= 1

    async def _is_there(self, owner: _Owner, calls: Sequence[PendingCall], now: float) -> bool:
        subject = subjects.client(calls[0].office, calls[0].computer, "pending")
        for call in calls:
            call.happened("smcp.probe")
        question = PendingQuestion(
            calls=[(call.agent, call.req_id) for call in calls if call.tracked],
            queries=[call.req_id for call in calls if not call.tracked],
        )
        try:
            reply = await self._bus.request(subject, question.model_dump_json().encode(), timeout=self._patience)
        except NoResponder:
            return False
        except RequestTimedOut:
            late = self._loop.time() - now - self._patience
            receives = any(call.arrives_until >= now + STILL_S for call in calls)  # its owner asked for a part since
            if owner.heard_at < now and not receives and late < OWN_LAG_S:
                await self._end_gone(calls, now, "the Computer does not answer")
        except BusError:
            pass  # the connection broke: the bus ends these calls itself
        else:
            await self._hear(owner, calls, reply, now)
        return True

    async def _hear(self, owner: _Owner, calls: Sequence[PendingCall], reply: Reply, asked_at: float) -> None:
        now = self._loop.time()
        owner.heard_at = now
        if NOT_RUN in reply.headers:
            # its connection broke, or it stood still: what it had answered may be lost
            owner.gated_since = owner.gated_since or now
            if now - owner.gated_since >= self._patience:
                await self._end_gone(calls, asked_at, "the Computer is not confirmed now")
            return
        owner.gated_since = None
        answer = _read(reply)
        unknown, ended, lost = set(answer.unknown), set(answer.ended), set(answer.lost_queries)
        for call in calls:
            if max(call.ask_from, call.arrives_until) > asked_at:
                continue
            key = (call.agent, call.req_id)
            if call.tracked and key in unknown:
                self._end([call], asked_at, Unavailable("the Computer does not know the call", details=MAY_HAVE_RUN))
            elif not (key in ended if call.tracked else call.req_id in lost):
                call.ended_at = None
            elif call.ended_at is None:
                call.ended_at = now  # its answer may be some steps behind this one
            elif call.ended_at <= asked_at:
                why = "the Computer's answer" if call.tracked else "the request to the Computer, or its answer,"
                self._end([call], asked_at, Unavailable(f"{why} was lost", details=MAY_HAVE_RUN))

    async def _end_gone(self, calls: Sequence[PendingCall], asked_at: float, why: str) -> None:
        """Nobody answers: 404 where the registry says in time that the Computer has left, else 503."""
        call = calls[0]
        error: SmcpError = Unavailable(why, details=MAY_HAVE_RUN | {GONE: True})
        try:
            found = await self._registry.find(call.office, "agent", call.agent, call.computer, timeout=FIND_S)
            if not found.member:
                error = no_such_computer(call.computer, **MAY_HAVE_RUN)
        except (SmcpError, BusError):
            pass
        self._end(calls, asked_at, error)

    def _end(self, calls: Sequence[PendingCall], asked_at: float, error: SmcpError) -> None:
        for call in calls:
            if call.ask_from <= asked_at:  # it was on the wire then, and still is: not between two tries
                self._calls.settle(call, error)


def _read(reply: Reply) -> PendingAnswer:
    if ERROR in reply.headers:
        return PendingAnswer(unknown=[])  # an owner that keeps no such table
    try:
        return PendingAnswer.model_validate_json(reply.body)
    except ValidationError:
        _log.warning("an owner's answer to `pending` cannot be read")
        return PendingAnswer(unknown=[])
