"""The calls that wait for Computers here, and the route of each: within this process, or over the bus.

A call costs an entry in `CallTable` and no task or timer of its own: `settle` interrupts the task of its event. A
request that stays here has a task of its own: a tool call goes on without its caller, and a query ends with it.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import orjson
from opentelemetry.trace import INVALID_SPAN, Span

from smcp_bus import ownership, subjects
from smcp_bus.bus import (
    BodyTooLarge,
    Bus,
    Headers,
    Incoming,
    Reply,
    RequestHandler,
    RequestTimedOut,
    error_reply,
)
from smcp_bus.dispatch import RawJson
from smcp_bus.headers import PROGRESS
from smcp_bus.limits import ByteBudget
from smcp_bus.nats.client import MAX_CHUNK
from smcp_bus.ownership import MAX_REQUESTS
from smcp_bus.tool_progress import ProgressThrottle
from smcp_proto import tool_results
from smcp_proto.errors import Internal, SmcpError, Unavailable

CANCEL_GRACE_S: Final = 1.0
"""How long an owner may take to settle a call that was cancelled (seconds)."""

ASK_AFTER_S: Final = 0.2
"""Age of a call from which on its owner is asked after it."""

PARSED_S: Final = 1.0
"""For how long its owner may not know a large one of which it has all parts: it parses others before it."""

STILL_S: Final = 16.0
"""For how long no part of a request may be asked for: an owner gives up after less, and never tells."""

NOT_SENT: Final = float("inf")

STANDSTILL_S: Final = 2.0
"""Pauses of the event loop that are shorter count as time on the way (`smcp_bus.owner.HELD_BEFORE_S`)."""

CANCELLED: Final = RawJson(orjson.dumps(tool_results.cancelled()))
"""The result of a call that was cancelled and that its Computer did not settle in time."""


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
    ask_from: float = NOT_SENT
    """From when on (loop time) its owner may be asked after it; `NOT_SENT` while it is on no wire."""
    arrives_until: float = 0.0
    """Until when (loop time) its owner may not know it: it has not got, or not read, all of the request."""
    on_wire: bool = False
    """It was sent, and no reply says that it was not run: it may have run."""
    ended_at: float | None = None
    """When its owner said first, and has said since, that the call is answered, or that the query is not running."""
    cancelled_at: float | None = None
    task: "asyncio.Task[object] | None" = None
    verdict: SmcpError | RawJson | None = None
    abandoned: bool = False
    """The caller has gone."""
    span: Span = field(default=INVALID_SPAN, repr=False)
    """Of its event."""
    events: tuple[str, ...] = ()
    """Of its span."""
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
        """It has surely not run."""
        self.on_wire = False
        self.ask_from = NOT_SENT
        self.happened("smcp.not_run")

    def request_moved(self) -> None:
        self.happened("smcp.request_in_chunks")
        self.arrives_until = asyncio.get_running_loop().time() + STILL_S

    def request_delivered(self) -> None:
        # its owner has to parse it; what was asked before says nothing
        self.arrives_until = asyncio.get_running_loop().time() + PARSED_S

    def watched(self) -> None:
        """Its owner is not to be asked after it any more."""
        self.ask_from = NOT_SENT

    def noted(self, body: bytes) -> None:
        if self.progress is not None:
            self.progress.read(body)


class CallTable:
    """Calls by session, in the order in which they came.

    What a client sent before this process stood still may be read long after it: `beat` notices that.
    """

    def __init__(self) -> None:
        self._by_session: dict[str, dict[PendingCall, None]] = {}
        self._beat = ownership.now()
        self._went_on_at = 0.0

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._by_session.values())

    def __iter__(self) -> Iterator[PendingCall]:
        return iter([call for calls in self._by_session.values() for call in calls])

    def beat(self) -> None:
        """Look at the clock; to be called often."""
        now = ownership.now()
        if now - self._beat > STANDSTILL_S:
            self._went_on_at = asyncio.get_running_loop().time()
        self._beat = now

    def stood_still_since(self, connected_at: float) -> bool:
        """Whether this process stood still since that loop time."""
        self.beat()
        return connected_at <= self._went_on_at

    def of_session(self, session: str) -> list[PendingCall]:
        """The calls of a session, the oldest first."""
        return list(self._by_session.get(session, ()))

    async def run(self, call: PendingCall, work: Coroutine[object, object, RawJson]) -> RawJson:
        """Wait for `work`, or for somebody to settle the call.

        Raises:
            SmcpError: the verdict that settled it, or what `work` raised.
        """
        call.task = task = asyncio.current_task()
        assert task is not None
        calls = self._by_session.setdefault(call.session, {})
        calls[call] = None
        try:
            return await work
        except asyncio.CancelledError:
            if call.verdict is None or task.uncancel() > 0:
                raise
            if isinstance(call.verdict, RawJson):
                return call.verdict
            raise call.verdict from None
        finally:
            del calls[call]
            if not calls and self._by_session.get(call.session) is calls:
                del self._by_session[call.session]
            call.task = None
            if call.progress is not None:
                call.progress.close()

    def settle(self, call: PendingCall, verdict: SmcpError | RawJson) -> None:
        """Answer a call that still waits; the first verdict counts."""
        if call.task is not None and call.verdict is None and not call.abandoned:
            call.verdict = verdict
            call.task.cancel()

    def abandon(self, session: str) -> list[PendingCall]:
        """The client of these calls is gone: end them without an answer, and say which they were."""
        calls = self.of_session(session)
        for call in calls:
            if call.task is not None:
                call.abandoned = True
                call.task.cancel()
        return calls

    def cancel(self, session: str, req_id: str, *, now: float) -> list[PendingCall]:
        """The client cancels a tool call: its Computer has `CANCEL_GRACE_S` from `now` on to settle it.

        Returns:
            The calls that were not cancelled before.
        """
        cancelled = [
            call
            for call in self._by_session.get(session, ())
            if call.tracked and call.req_id == req_id and call.cancelled_at is None
        ]
        for call in cancelled:
            call.cancelled_at = now
        return cancelled

    @staticmethod
    def take_back_cancel(cancelled: Iterable[PendingCall]) -> None:
        """The cancellation of these calls could not be sent to the Computer: they go on."""
        for call in cancelled:
            call.cancelled_at = None

    def settle_overdue(self, now: float) -> None:
        """Answer the cancelled calls whose Computer did not."""
        for call in self:
            if call.cancelled_at is not None and now - call.cancelled_at >= CANCEL_GRACE_S:
                self.settle(call, CANCELLED)


_log: Final = logging.getLogger("smcp_gateway.calls.table")


class TooManyCalls(Unavailable):
    """Nothing was sent."""


class LocalComputer(Protocol):
    """A Computer that this process owns."""

    @property
    def takes_calls(self) -> bool: ...

    @property
    def handle(self) -> RequestHandler: ...


class CallRoute:
    """Hands a request to the Computer's owner in this process, or to the bus. `close` it before the bus."""

    def __init__(self, bus: Bus, here: Mapping[str, Sequence[LocalComputer]]) -> None:
        """`here`: by subject without its verb."""
        self.bus = bus
        self._here = here
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Reply]] = set()
        self._slots = ByteBudget(MAX_REQUESTS)
        self.requests = {"here": 0, "bus": 0}
        """Requests to Computers, by where their owners are."""

    def __len__(self) -> int:
        return len(self._tasks)

    async def request(
        self,
        subject: str,
        body: bytes,
        *,
        timeout: float,
        headers: Headers,
        progress: PendingCall,
        span: Span = INVALID_SPAN,
    ) -> Reply:
        """See `Bus.request`. An owner in this process is not probed, since no connection to it can break."""
        computers = self._here.get(subjects.without_verb(subject)) if self._here else None
        handler = next((computer.handle for computer in computers if computer.takes_calls), None) if computers else None
        self.requests["bus" if handler is None else "here"] += 1
        if handler is None:
            reply = await self.bus.request(subject, body, timeout=timeout, headers=headers, progress=progress)
            if len(reply.body) > MAX_CHUNK:
                span.add_event("smcp.answer_in_chunks", {"bytes": len(reply.body)})
            return reply
        if len(body) > self.bus.max_body:
            raise BodyTooLarge(len(body), self.bus.max_body)
        if (slot := self._slots.take(1, progress.office)) is None:
            raise TooManyCalls("too many calls run here; ask again", details={"may_have_run": False})
        progress.watched()
        deadline = self._loop.time() + timeout
        note = progress.noted if PROGRESS in headers else None
        task = self._loop.create_task(self._run(handler, Incoming(subject, body, headers, deadline, note)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: slot.release())
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(task)
        except TimeoutError:
            raise RequestTimedOut("no answer in time") from None
        finally:
            if not progress.tracked:
                task.cancel()  # without its caller a query ends, and its quota is free again

    async def close(self) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def _run(self, handler: RequestHandler, incoming: Incoming) -> Reply:
        try:
            return await handler(incoming)
        except asyncio.CancelledError:
            return error_reply(Unavailable("shutting down"))  # or its caller has gone
        except Exception:  # noqa: BLE001 -- whatever a handler raises, its text stays here
            _log.exception("the handler of %s failed", incoming.subject)
            return error_reply(Internal("internal error"))
