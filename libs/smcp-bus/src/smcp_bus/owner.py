"""The owner of a Computer keeps its calls: each runs once, has one answer, and can be cancelled.

The process that serves a Computer's subject owns it: a native Computer itself, or the gateway of one on Socket.IO.
One `Owner` for a process: the bound on memory is the process's, and a Computer that leaves and joins again must not run
again what it ran. Whether it may run anything now is for `smcp_bus.ownership`.
"""

import asyncio
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.trace import get_current_span
from xxhash import xxh3_128_digest

from smcp_bus import exact_json
from smcp_bus.bus import Note
from smcp_bus.dispatch import Dispatcher
from smcp_bus.limits import ByteBudget, Key, surplus
from smcp_bus.ownership import FREED, MAX_CANCELLERS, CallKey, EndedCall, Ownership, RunningCall, Seat, Stop
from smcp_bus.registry_contract import PendingAnswer, PendingQuestion
from smcp_bus.tool_progress import ProgressThrottle, note_counts
from smcp_bus.tracing import event
from smcp_proto import tool_results
from smcp_proto.errors import Malformed, SmcpError, Unavailable, error_of
from smcp_proto.schemas.tools import UNKNOWN_REPEAT, ToolCallReq, ToolProgressReq

_log = logging.getLogger("smcp_bus.owner")

ABSENT_S: Final = 5.0
"""How long an Agent that is gone may take to come back before its calls are cancelled (seconds)."""
MAX_KEYS: Final = 100_000
"""Ended calls, and tombstones, at most (see `surplus`)."""
RUNNING_BYTES: Final = 256 * 1024 * 1024
"""The most that the parameters of running calls take, shared per office."""
MOST_RUNNING: Final = 8192
"""Small calls that run at most: each counts for at least so small a part of `RUNNING_BYTES`."""
ANSWERED_S: Final = 0.3
"""How long the answer of a call that has ended may be on its way (seconds)."""
HELD_BEFORE_S: Final = 5.0
"""So long before a call was sent first its owner must have held the seat, to be sure that no other owner got it
(seconds). Longer than a message may take."""
RECENT_S: Final = 10.0
"""How old a repeat may be that is taken for a call which never arrived (seconds): the table forgets older ones."""


@dataclass(frozen=True, slots=True)
class Keeping:
    results_s: float = 300.0
    results_bytes: int = 64 * 1024 * 1024
    keys_s: float = 3900.0
    """Longer than the longest call may take."""
    tombstones_s: float = 120.0


async def digest_of(tool: str, params: Mapping[str, Any]) -> tuple[bytes, int]:
    """128 bits, and the bytes of the text. Two calls of one digest: the Agent gets its own result for the other."""
    text = exact_json.written([tool, params], sort_keys=True)
    if len(text) > exact_json.ONE_STEP:
        await asyncio.sleep(0)  # others are served before it is written once more
    return xxh3_128_digest(text), len(text)


class Owner:
    """The calls of this process's Computers: those that run, and those that have ended.

    A dropped result leaves its key, and a cancel that arrives before its call leaves a tombstone. Both live as long
    as the process, so a repeat whose key is not known here is run only if no other owner can have run it.
    """

    def __init__(self, keeping: Keeping | None = None) -> None:
        self._keeping = keeping = keeping or Keeping()
        self._loop = asyncio.get_running_loop()
        self._running: dict[CallKey, RunningCall] = {}
        self._bytes = ByteBudget(RUNNING_BYTES)
        self.idle = asyncio.Event()
        self.idle.set()
        self._ended: OrderedDict[CallKey, EndedCall] = OrderedDict()
        self._kept: OrderedDict[CallKey, EndedCall] = OrderedDict()
        self.kept_bytes = 0
        self._tombstones: OrderedDict[tuple[str, str, str], tuple[float, tuple[str, ...]]] = OrderedDict()
        """By office, agent and req_id: when it was cancelled last (loop time), and by which subjects."""
        self._tidy_every_s = max(min(keeping.results_s, keeping.keys_s, keeping.tombstones_s), 0.02)
        self._timer: asyncio.TimerHandle | None = None
        self.repeats = {"running": 0, "kept": 0, "expired": 0}
        """Calls that were asked for again and not run again, by what there was of them."""
        self.notes = note_counts()
        """Notes of the progress of calls, by what became of them."""

    @property
    def running(self) -> int:
        return len(self._running)

    def held(self) -> dict[str, int]:
        return {
            "running_calls": len(self._running),
            "ended_calls": len(self._ended),
            "kept_results": len(self._kept),
            "kept_result_bytes": self.kept_bytes,
            "kept_cancels": len(self._tombstones),
        }

    def close(self) -> None:
        """Answer what still runs as broken off, and stop it. Idempotent."""
        for call in list(self._running.values()):
            self._break_off(call, "aborted", tool_results.failed("the Computer stopped while the tool ran"))
        if self._timer is not None:
            self._timer.cancel()

    async def call(
        self,
        seat: Seat,
        request: ToolCallReq,
        left: float,
        start: Callable[[RunningCall], Stop],
        *,
        subject: str = "",
        timed_out: Callable[[str, float], Mapping[str, Any]] = tool_results.timed_out,
        note: Note | None = None,
    ) -> bytes:
        """Run a call, or join it, or give its kept result.

        Args:
            left: seconds until the caller stops waiting.
            start: begins to run it, without waiting; what it raises says that nothing was run.
            subject: who calls (`Caller.subject`). A name in an office may be one holder's today and another's tomorrow.
            timed_out: what is answered when its time is over, from its tool and its seconds.
            note: for the notes of its progress, from now on; None: the caller reads none.

        Returns:
            A `CallToolResult` as JSON.

        Raises:
            Malformed: the `req_id` was used for another call, or by another subject.
            Unavailable: a repeat of a call that is not known here and that another owner may have run
                (`details.may_have_run` and `details.unknown_repeat`); or its office runs too many bytes.
            Whatever `start` raises, or the call was settled with. A repeat gets the same error, unless it says that
            nothing was run (`details.may_have_run` is False): then it runs.
        """
        # names of which each call brings its own copy, and of which there are few
        agent, subject = sys.intern(request.agent), sys.intern(subject)
        key = (seat.office, seat.computer, agent, request.req_id)
        digest, size = await digest_of(request.tool_name, request.params)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        call = self._running.get(key)
        if call is not None:
            _same(call, digest, subject)
            call.waiting.append(answer)
            if call.progress is not None:
                call.progress.set_receiver(note)
            event("smcp.joined")
            call.asked_at = self._loop.time()
            self.repeats["running"] += 1
        else:
            if (known := self._replay(key, request, digest, subject, seat, left)) is not None:
                event("smcp.kept_answer")
                return known
            limit, now = tool_results.time_limit(request.timeout, left), self._loop.time()
            ends = limit
            if seat.cancel_grace_s:  # another process, whose limit began later: its time-out says why
                ends = (limit + min(request.timeout, left)) / 2
            if (grant := self._bytes.take(max(size, RUNNING_BYTES // MOST_RUNNING), seat.office)) is None:
                raise Unavailable("too many calls run here; retry", details={"may_have_run": False})
            call = RunningCall(seat, key, request.tool_name, digest, subject, limit, now, [answer], grant)
            if note is not None:
                call.progress = ProgressThrottle(note, self.notes)
            self._running[key] = call  # `start` may settle it at once
            self.idle.clear()
            call.timers.append(self._loop.call_at(now + ends, self._expire, call, timed_out))
            try:
                call.stop = start(call)
            except BaseException:
                self._remove(call)
                raise
        return await answer

    def settle(self, call: RunningCall, outcome: bytes | Exception) -> None:
        """The call's own answer: a `CallToolResult` as JSON, or an error. Nothing where it was settled before."""
        if call.settled:
            return
        call.settled = True
        self._remove(call)
        for answer in (each for each in call.waiting if not each.done()):  # some who asked may have gone
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
                answer.exception()  # marks it as seen, where who asked goes now
            else:
                answer.set_result(outcome)
        self._keep(call, outcome)

    def progressed(self, seat: Seat, request: ToolProgressReq) -> None:
        """A Computer on Socket.IO says how far a call is: it counts if the call runs there, and its Agent reads it."""
        call = self._running.get((seat.office, seat.computer, request.agent, request.req_id))
        if call is None or call.progress is None:
            self.notes["dropped"] += 1
        else:
            call.progress.take(request)

    def cancel(self, seats: Iterable[Seat], office: str, agent: str, req_id: str, subject: str = "") -> bool:
        """Cancel the subject's call at each of the office's Computers that runs it, and say whether any did. One that
        comes later will not run. Idempotent."""
        calls = [
            call
            for seat in seats
            if (call := self._running.get((office, seat.computer, agent, req_id))) is not None
            and call.subject == subject
        ]
        by = get_current_span().get_span_context()
        for call in calls:
            if by.is_valid and call.span.is_recording():
                call.span.add_link(by)
            if not call.seat.cancel_grace_s:
                self._cancelled(call, "cancelled")
            elif len(call.timers) == 1:
                call.timers.append(self._loop.call_later(call.seat.cancel_grace_s, self._cancelled, call, "cancelled"))
        if not calls:
            _, known = self._tombstones.pop((office, agent, req_id), (0.0, ()))
            subjects = (*(each for each in known if each != subject), subject)[-MAX_CANCELLERS:]
            self._tombstones[office, agent, req_id] = self._loop.time(), subjects
            self._tidy()
            self._tidy_later()
        return bool(calls)

    def agent_left(
        self,
        office: str,
        agent: str,
        ownership: Ownership,
        is_back: Callable[[], bool],
        on_absent: Callable[[], None] = lambda: None,
    ) -> None:
        """An Agent has left the office: 5 s later its calls are cancelled, but those that were asked for again.

        An Agent that lost its gateway comes back by another one: `is_back` says whether it has. If the ownership was
        lost meanwhile, its return may have been missed: its calls go on. `on_absent` is called where it stays away.
        """
        now, generation = self._loop.time(), ownership.generation

        def abandon() -> None:
            if is_back() or ownership.generation != generation:
                return
            for key, call in list(self._running.items()):
                if key[::2] == (office, agent) and call.asked_at < now:
                    self._cancelled(call, "abandoned")
            on_absent()

        self._loop.call_later(ABSENT_S, abandon)

    def knows(self, seat: Seat, agent: str, req_id: str) -> bool:
        key = (seat.office, seat.computer, agent, req_id)
        return key in self._running or key in self._ended

    def runs_for_another(self, seat: Seat, agent: str, req_id: str, subject: str) -> bool:
        """Whether a call by that name runs there that is not the subject's."""
        call = self._running.get((seat.office, seat.computer, agent, req_id))
        return call is not None and call.subject != subject

    def pending(self, seat: Seat, question: PendingQuestion, dispatcher: Dispatcher) -> PendingAnswer:
        """Which of these calls are not known here, which have ended, and which queries the `dispatcher` does not run.

        The answer leaves out requests that run or begin, and calls that have just ended, since their answers are on
        their way. It is empty while a large request of the office is read, which may be one of them.
        """
        self._tidy()
        if any(not each.payload and each.caller.office == seat.office for each in dispatcher.running):
            return PendingAnswer(unknown=[], ended=[], lost_queries=[])
        begun = {(each.payload.get("agent"), each.req_id) for each in dispatcher.running}
        ids = {req_id for _, req_id in begun}
        lost = [each for each in question.queries if each not in ids]
        answer = PendingAnswer(unknown=[], ended=[], lost_queries=lost)
        for agent, req_id in question.calls:
            key = (seat.office, seat.computer, agent, req_id)
            if key in self._running or (agent, req_id) in begun:
                continue
            ended = self._ended.get(key)
            if ended is None:
                answer.unknown.append((agent, req_id))
            elif self._loop.time() - ended.at > ANSWERED_S:
                answer.ended.append((agent, req_id))
        return answer

    def _remove(self, call: RunningCall) -> None:
        call.grant.release()
        for timer in call.timers:
            timer.cancel()
        if call.progress is not None:
            call.progress.close()
        del self._running[call.key]
        if not self._running:
            self.idle.set()

    def _expire(self, call: RunningCall, timed_out: Callable[[str, float], Mapping[str, Any]]) -> None:
        self._break_off(call, "timeout", timed_out(call.tool, call.limit))

    def _cancelled(self, call: RunningCall, why: str) -> None:
        self._break_off(call, why, tool_results.cancelled(call.tool))

    def _break_off(self, call: RunningCall, why: str, result: Mapping[str, Any]) -> None:
        if not call.settled:
            self.settle(call, exact_json.written(result))
            call.stop(why)

    def _replay(
        self, key: CallKey, request: ToolCallReq, digest: bytes, subject: str, seat: Seat, left: float
    ) -> bytes | None:
        self._tidy()
        ended = self._ended.get(key)
        if ended is not None and ended.failed and ended.subject != subject:
            self._drop(key)
            del self._ended[key]  # it holds no result, and must not keep the id from who used it first
            ended = None
        if ended is not None:
            _same(ended, digest, subject)
            if not ended.runs_again:
                self.repeats["expired" if ended.body is None else "kept"] += 1
                if ended.failed and ended.body is not None:
                    raise error_of(**exact_json.read(ended.body))
                return ended.body if ended.body is not None else exact_json.written(tool_results.expired())
            del self._ended[key]
        _, by = self._tombstones.get((seat.office, request.agent, request.req_id), (0.0, ()))
        if subject in by:
            return exact_json.written(tool_results.cancelled(request.tool_name))
        repeat = request.a2c_repeat
        if ended is not None or repeat is None or repeat is False:
            return None
        age = repeat / 1000 + max(request.timeout - left, 0.0)  # it waited at gateways, and on its way in parts
        held_since = None if repeat is True or age > RECENT_S else seat.held_since
        if held_since is None or held_since >= self._loop.time() - age - HELD_BEFORE_S:  # else it would be known
            raise Unavailable(
                "unknown repeated call; it may have run on another process",
                details={"may_have_run": True, UNKNOWN_REPEAT: True},
            )
        return None

    def _keep(self, call: RunningCall, outcome: bytes | Exception) -> None:
        ended = self._ended[call.key] = EndedCall(call.digest, call.subject, self._loop.time(), None)
        if isinstance(outcome, SmcpError):
            ended.failed, ended.runs_again = True, outcome.details.get("may_have_run") is False
            outcome = exact_json.written(outcome.body().model_dump())  # parsed, it may take 25 times as much
        most = self._keeping.results_bytes
        if isinstance(outcome, bytes) and len(outcome) <= most and not ended.runs_again:
            if self.kept_bytes + len(outcome) > most:
                sizes = [(key, len(each.body or b"")) for key, each in self._kept.items()]
                for key in surplus(sizes, max(most - most // FREED - len(outcome), 0)):
                    self._drop(key)
            ended.body = outcome
            self._kept[call.key] = ended
            self.kept_bytes += len(outcome)
        self._tidy_later()

    def _drop(self, key: CallKey) -> None:
        if (ended := self._kept.pop(key, None)) is not None:
            self.kept_bytes -= len(ended.body or b"")
            ended.body = None

    def _tidy_later(self) -> None:
        if self._timer is None:  # what nobody asks for goes, too
            self._timer = self._loop.call_later(self._tidy_every_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._tidy()
        if self._ended or self._tombstones:
            self._tidy_later()

    def _tidy(self) -> None:
        now, keeping = self._loop.time(), self._keeping
        while self._kept and next(iter(self._kept.values())).at + keeping.results_s <= now:
            self._drop(next(iter(self._kept)))
        while self._ended and next(iter(self._ended.values())).at + keeping.keys_s <= now:
            key, _ = self._ended.popitem(last=False)
            self._drop(key)
        while self._tombstones and next(iter(self._tombstones.values()))[0] + keeping.tombstones_s <= now:
            self._tombstones.popitem(last=False)
        for key in _forgotten(self._ended):
            self._drop(key)
        _forgotten(self._tombstones)


def _forgotten(table: OrderedDict[Key, Any]) -> list[Key]:
    keys = surplus([(key, 1) for key in table], MAX_KEYS - MAX_KEYS // FREED) if len(table) > MAX_KEYS else []
    for key in keys:
        del table[key]
    return keys


def _same(known: RunningCall | EndedCall, digest: bytes, subject: str) -> None:
    if known.subject != subject or known.digest != digest:
        raise Malformed("this req_id was used for another call", details={"field": "req_id"})
