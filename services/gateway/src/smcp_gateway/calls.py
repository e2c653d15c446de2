"""The calls that wait for Computers here, what ends them, and the probe of the Computers' owners.

A call costs an entry in `CallTable` and no task or timer of its own: `settle` interrupts the task of its event.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson
from opentelemetry.trace import INVALID_SPAN, Span
from pydantic import ValidationError

from smcp_bus import ownership, subjects
from smcp_bus.bus import OWN_LAG_S, BusError, NoResponder, Reply, RequestTimedOut
from smcp_bus.dispatch import Answer
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import PendingAnswer, PendingQuestion
from smcp_bus.tool_progress import ProgressThrottle
from smcp_proto import tool_results
from smcp_proto.errors import GONE, SmcpError, Unavailable, no_such_computer

_log: Final = logging.getLogger("smcp_gateway.calls")

CANCEL_GRACE_S: Final = 1.0
"""How long an owner may take to settle a call that was cancelled (seconds)."""
ASK_AFTER_S: Final = 0.2
"""Age of a call from which on its owner is asked after it."""
BEGIN_S: Final = 1.0
"""How long an owner may take to begin to read a large call after it has all its parts (seconds)."""
STILL_S: Final = 16.0
"""For how long no part of a request may be asked for: an owner gives up after less, and never tells."""
NOT_SENT: Final = float("inf")
STANDSTILL_S: Final = 2.0
"""Pauses of the event loop that are shorter count as time on the way (`smcp_bus.owner.HELD_BEFORE_S`)."""
CANCELLED: Final = Answer(orjson.dumps(tool_results.cancelled()))
"""The result of a call that was cancelled and that its Computer did not settle in time."""
EVERY_S: Final = 0.25
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


@dataclass(slots=True, eq=False)
class PendingCall:
    """One `client:*` request that waits for its Computer. It is the `Progress` of its request on the bus."""

    session: str
    office: str
    computer: str
    agent: str
    req_id: str
    tracked: bool
    """It is a tool call, which its owner knows also after it has ended. A query is known only while it runs."""
    subject: str = ""
    """The identity of who calls, or for whom: its owner knows the call by it, too."""
    body: bytes = field(default=b"", repr=False)
    ask_from: float = NOT_SENT
    """From when on (loop time) its owner may be asked after it; `NOT_SENT` while it is on no wire."""
    arrives_until: float = 0.0
    """Until then (loop time) its owner need not have all of the request, nor have begun to read it."""
    on_wire: bool = False
    """It was sent, and no reply says that it was not run: it may have run."""
    ended_at: float | None = None
    """When its owner said first, and has said since, that the call is answered, or that the query is not running."""
    cancelled_at: float | None = None
    task: "asyncio.Task[object] | None" = None
    verdict: SmcpError | Answer | None = None
    span: Span = field(default=INVALID_SPAN, repr=False)
    events: tuple[str, ...] = ()
    progress: ProgressThrottle | None = None
    """To its Agent; None: that reads none."""

    def happened(self, what: str) -> None:
        """Record an event of its span, the first time: how often it happens depends on how long the call takes."""
        if what not in self.events:
            self.events = *self.events, what
            self.span.add_event(what)

    def sent(self, now: float) -> None:
        self.on_wire = True
        self.ask_from = now + ASK_AFTER_S
        self.arrives_until = 0.0
        self.ended_at = None

    def not_run(self) -> None:
        self.on_wire = False
        self.ask_from = NOT_SENT
        self.happened("smcp.not_run")

    def request_moved(self) -> None:
        self.happened("smcp.request_in_chunks")
        self.arrives_until = asyncio.get_running_loop().time() + STILL_S

    def request_delivered(self) -> None:
        # queries that were sent before this say nothing about it
        self.arrives_until = asyncio.get_running_loop().time() + BEGIN_S

    def watched(self) -> None:
        """Its owner is not to be asked after it any more."""
        self.ask_from = NOT_SENT

    def noted(self, body: bytes) -> None:
        if self.progress is not None:
            self.progress.read(body)


class CallTable:
    """Calls by session, in the order in which they came. `beat` notices that this process was suspended: what a client
    sent before that may be read long after it was sent."""

    def __init__(self) -> None:
        self._by_session: dict[str, dict[PendingCall, None]] = {}
        self._beat = ownership.now()
        self._resumed_at = 0.0

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._by_session.values())

    def __iter__(self) -> Iterator[PendingCall]:
        return iter([call for calls in self._by_session.values() for call in calls])

    def beat(self) -> None:
        """Look at the clock; to be called often."""
        now = ownership.now()
        if now - self._beat > STANDSTILL_S:
            self._resumed_at = asyncio.get_running_loop().time()
        self._beat = now

    def was_suspended_since(self, connected_at: float) -> bool:
        self.beat()
        return connected_at <= self._resumed_at

    def of_session(self, session: str) -> list[PendingCall]:
        return list(self._by_session.get(session, ()))

    async def run(self, call: PendingCall, work: Coroutine[object, object, Answer]) -> Answer:
        """Wait for `work`, or for somebody to settle the call. Raises SmcpError: the verdict, or what `work` raised."""
        call.task = task = asyncio.current_task()
        assert task is not None
        calls = self._by_session.setdefault(call.session, {})
        calls[call] = None
        try:
            return await work
        except asyncio.CancelledError:
            if call.verdict is None or task.uncancel() > 0:
                raise
            if isinstance(call.verdict, Answer):
                return call.verdict
            raise call.verdict from None
        finally:
            del calls[call]
            if not calls and self._by_session.get(call.session) is calls:
                del self._by_session[call.session]
            call.task = None
            if call.progress is not None:
                call.progress.close()

    def settle(self, call: PendingCall, verdict: SmcpError | Answer) -> None:
        """Answer a call that still waits; the first verdict counts."""
        if call.task is not None and call.verdict is None:
            call.verdict = verdict
            call.task.cancel()

    def abandon(self, session: str) -> list[PendingCall]:
        """The client of these calls is gone: end them without an answer, and say which they were."""
        calls = self.of_session(session)
        for call in calls:
            if call.task is not None:
                call.task.cancel()
                call.task = None  # nobody settles it any more
        return calls

    def cancel(self, session: str, req_id: str, *, now: float) -> list[PendingCall]:
        """The client cancels a tool call, which its Computer has to settle. Returns those not cancelled before."""
        cancelled = [
            call
            for call in self._by_session.get(session, ())
            if call.tracked and call.req_id == req_id and call.cancelled_at is None
        ]
        for call in cancelled:
            call.cancelled_at = now
        return cancelled

    def settle_overdue(self, now: float) -> None:
        for call in self:
            if call.cancelled_at is not None and now - call.cancelled_at >= CANCEL_GRACE_S:
                self.settle(call, CANCELLED)


@dataclass(slots=True)
class _Owner:
    asked_at: float = 0.0
    heard_at: float = 0.0
    gated_since: float | None = None
    queries: int = 0


class OwnerProbe:
    """Asks the owners of Computers after the calls that wait for them: a dead owner is noticed within a second.

    The bus does not say that a receiver died after a request was delivered, so owners are asked `pending`, again and
    again (ADR 0003). What that tells ends a call with 503 and `details.may_have_run`, or with 404 where the registry
    says that the Computer has left. `details.gone` says that a repeat would find nobody; not just after a node of NATS
    has gone, since the owner may be connecting to another one.
    """

    def __init__(self, bus: Bus, registry: RegistryClient, calls: CallTable, *, lease_s: float) -> None:
        self._bus = bus
        self._registry = registry
        self._calls = calls
        self._patience = PATIENCE * lease_s
        self._owners: dict[tuple[str, str], _Owner] = {}
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
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
            # its connection broke, or it was suspended: its earlier answers may be lost
            owner.gated_since = owner.gated_since or now
            if now - owner.gated_since >= self._patience:
                await self._end_gone(calls, asked_at, "the Computer is not confirmed")
            return
        owner.gated_since = None
        try:  # an owner that answers with an error keeps no such table
            answer = PendingAnswer.model_validate_json(b'{"unknown":[]}' if ERROR in reply.headers else reply.body)
        except ValidationError:
            _log.warning("an owner's answer to `pending` cannot be read")
            return
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
            found = await self._registry.find((call.office, "agent", call.agent), call.computer, timeout=FIND_S)
            if not found.member:
                error = no_such_computer(call.computer, **MAY_HAVE_RUN)
        except (SmcpError, BusError):
            pass
        self._end(calls, asked_at, error)

    def _end(self, calls: Sequence[PendingCall], asked_at: float, error: SmcpError) -> None:
        for call in calls:
            if call.ask_from <= asked_at:  # it was on the wire then, and still is: not between two tries
                self._calls.settle(call, error)
