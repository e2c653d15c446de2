"""The calls that wait for Computers here.

A call costs an entry in `CallTable` and no task or timer of its own: `settle` interrupts the task of its event.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import orjson
from opentelemetry.trace import INVALID_SPAN, Span

from smcp_bus import ownership
from smcp_bus.dispatch import RawJson
from smcp_bus.tool_progress import ProgressThrottle
from smcp_proto import tool_results
from smcp_proto.errors import SmcpError

CANCEL_GRACE_S: Final = 1.0
"""How long an owner may take to settle a call that was cancelled (seconds)."""

ASK_AFTER_S: Final = 0.2
"""Age of a call from which on its owner is asked after it."""

PARSING_S: Final = 1.0
"""How long an owner may take to parse a large call after it has all its parts: it parses others first (seconds)."""

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
    body: bytes = field(default=b"", repr=False)
    """Its request as JSON, from the first try over the bus on."""
    ask_from: float = NOT_SENT
    """From when on (loop time) its owner may be asked after it; `NOT_SENT` while it is on no wire."""
    arrives_until: float = 0.0
    """Until then (loop time) its owner may not have all of the request, or not have parsed it, and does not know it."""
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
        self.arrives_until = asyncio.get_running_loop().time() + PARSING_S

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
