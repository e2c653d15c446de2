"""The calls of this Computer: each runs once, has one answer, and can be cancelled.

A call is known by `(office, agent, req_id)`. The same call again (same tool and parameters) joins the one that runs, or
gets the result that is kept; another call under the same key is refused. Results are kept for some minutes within
a budget of bytes; a dropped one leaves its key, so that the call never runs a second time. A cancel that arrives before
its call leaves a tombstone. Whatever settles a call first (its result, its time, a cancel) is its answer.

The table lives as long as the process. So a request that its sender marks as a repeat of one that may have arrived is
never run where its key is not known: a Computer of the same name may have run it, and ended.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from smcp_bus import exact_json
from smcp_computer.tools import result as results
from smcp_proto.errors import Malformed, Unavailable

MAX_KEYS: Final = 100_000
"""Keys of ended calls, and tombstones, at most; the oldest are forgotten first."""

ANSWERED_S: Final = 0.3
"""How long the answer of a call that has ended may be on its way."""

CallKey = tuple[str, str, str]
"""(office, agent, req_id)"""

Run = Callable[[], Awaitable[Mapping[str, Any]]]
"""Runs the tool: its `CallToolResult` as JSON. What it raises is an error of the protocol."""


BrokenOff = Callable[[str], None]
"""Told why, just before a tool that still runs is cancelled."""

TimedOut = Callable[[str, float], Mapping[str, Any]]
"""The result of a call whose time is over, from its tool and its seconds."""


@dataclass(frozen=True)
class Keeping:
    """How long and how much is kept, in seconds and bytes."""

    results_s: float = 300.0
    results_bytes: int = 64 * 1024 * 1024
    keys_s: float = 3900.0
    """Longer than the longest call may take."""
    tombstones_s: float = 120.0


@dataclass(slots=True)
class _Running:
    digest: bytes
    tool: str
    limit: float
    answer: "asyncio.Future[bytes]"
    broken_off: BrokenOff
    timed_out: TimedOut
    asked_at: float
    """When it was asked for last (loop time)."""
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class _Ended:
    digest: bytes
    settled_at: float
    forget_at: float
    drop_at: float
    body: bytes | None = field(repr=False)


def encode(result: Mapping[str, Any]) -> bytes:
    """A result as JSON; also one with numbers or strings that the fast encoder does not take."""
    return exact_json.written(result)


def digest(tool: str, params: Mapping[str, Any]) -> bytes:
    """What two requests have in common that ask for the same call."""
    return hashlib.sha256(exact_json.written([tool, params], sort_keys=True)).digest()


class InFlight:
    """Leaving it cancels what still runs."""

    def __init__(self, keeping: Keeping | None = None) -> None:
        self._keeping = keeping or Keeping()
        self._loop = asyncio.get_running_loop()
        self._running: dict[CallKey, _Running] = {}
        self._ended: OrderedDict[CallKey, _Ended] = OrderedDict()
        self._kept: OrderedDict[CallKey, int] = OrderedDict()
        self._kept_bytes = 0
        self._tidies: asyncio.TimerHandle | None = None
        self._tombstones: OrderedDict[CallKey, float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Answer what still runs as broken off, and stop it. Idempotent."""
        for key in list(self._running):
            self._settle(key, results.failed("the Computer stopped while the tool ran"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._tidies is not None:
            self._tidies.cancel()

    @property
    def kept(self) -> int:
        """How many results are kept now."""
        return len(self._kept)

    @property
    def running(self) -> int:
        """How many calls run now."""
        return len(self._running)

    def held(self) -> dict[str, int]:
        """How many of all that calls cause it holds now."""
        return {
            "calls": len(self._running),
            "tool_tasks": len(self._tasks),
            "ended_calls": len(self._ended),
            "kept_results": len(self._kept),
            "kept_cancels": len(self._tombstones),
        }

    async def wait_idle(self) -> None:
        """Return when no call runs."""
        await self._idle.wait()

    def knows(self, key: CallKey) -> bool:
        """Whether the call runs here, or ended here."""
        return key in self._running or key in self._ended

    def answered(self, key: CallKey) -> bool:
        """Whether the call ended here so long ago that its answer should have arrived."""
        ended = self._ended.get(key)
        return ended is not None and self._loop.time() - ended.settled_at > ANSWERED_S

    async def call(
        self,
        key: CallKey,
        tool: str,
        params: Mapping[str, Any],
        *,
        limit: float,
        run: Run,
        broken_off: BrokenOff = lambda why: None,
        timed_out: TimedOut = results.timed_out,
        repeat: bool = False,
    ) -> bytes:
        """Run a call, or join it, or give its kept result.

        Args:
            limit: seconds after which it is answered as timed out, and cancelled.
            run: runs the tool; awaited in a task of its own.
            broken_off: told why before that task is cancelled.
            timed_out: what is answered when `limit` is over.
            repeat: the request may have arrived before; without its key it is not run.

        Returns:
            A `CallToolResult` as JSON.

        Raises:
            Malformed: the key was used for another call.
            Unavailable: a repeat of a call that is not known here, with `details.may_have_run`.
            Whatever `run` raises.
        """
        self._tidy()
        digest_ = digest(tool, params)
        known = self._running.get(key) or self._ended.get(key)
        if known is not None:
            if known.digest != digest_:
                raise Malformed("this req_id was used for another call", details={"field": "req_id"})
            if isinstance(known, _Running):
                known.asked_at = self._loop.time()
                return await asyncio.shield(known.answer)
            return known.body if known.body is not None else encode(results.expired())
        if key in self._tombstones:
            return encode(results.cancelled(tool))
        if repeat:
            raise Unavailable(
                "this Computer does not know the call that is repeated; whether it ran is not known",
                details={"may_have_run": True},
            )
        answer: asyncio.Future[bytes] = self._loop.create_future()
        running = _Running(digest_, tool, limit, answer, broken_off, timed_out, self._loop.time())
        self._start(key, running, run)
        return await asyncio.shield(running.answer)

    def cancel(self, key: CallKey) -> bool:
        """Answer the call as cancelled and stop it; one that is not known yet will not run. Idempotent.

        Returns:
            Whether it ran.
        """
        self._tidy()
        running = self._running.get(key)
        if running is not None:
            self._settle(key, results.cancelled(running.tool))
            return True
        if key not in self._ended:
            self._tombstones[key] = self._loop.time() + self._keeping.tombstones_s
            self._tombstones.move_to_end(key)
            self._tidy_in_time()
        return False

    def calls(self, office: str, agent: str) -> bool:
        """Whether calls of that Agent run."""
        return any(key[:2] == (office, agent) for key in self._running)

    def abandon(self, office: str, agent: str, since: float) -> int:
        """Cancel the calls of an Agent that is gone since then (loop time), but those that were asked for again.

        Returns:
            How many ran.
        """
        abandoned = [
            (key, running)
            for key, running in self._running.items()
            if key[:2] == (office, agent) and running.asked_at < since
        ]
        for key, running in abandoned:
            self._settle(key, results.cancelled(running.tool))
        return len(abandoned)

    def _start(self, key: CallKey, running: _Running, run: Run) -> None:
        self._running[key] = running
        self._idle.clear()
        # created here, so that the task has the caller's context: its span is the parent of the tool's
        task = asyncio.create_task(self._run(key, run), name="tool_call")
        running.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        timer = self._loop.call_later(max(running.limit, 0.0), self._expire, key, running)
        running.answer.add_done_callback(lambda _: timer.cancel())

    async def _run(self, key: CallKey, run: Run) -> None:
        try:
            self._settle(key, await run())
        except Exception as error:  # noqa: BLE001 -- handed on to whoever awaits the call, unless it is settled
            self._settle(key, error)
        finally:  # a task that somebody else cancelled
            self._settle(key, results.failed("the call was broken off on the Computer"))

    def _expire(self, key: CallKey, running: _Running) -> None:
        if self._running.get(key) is running:
            self._settle(key, running.timed_out(running.tool, running.limit))

    def _settle(self, key: CallKey, outcome: Mapping[str, Any] | Exception) -> None:
        """The first to come here decides."""
        running = self._running.get(key)
        if running is None or running.answer.done():
            return
        body: bytes | None = None
        if isinstance(outcome, Exception):
            running.answer.set_exception(outcome)
            running.answer.exception()  # marks it as seen, where everybody has gone
        else:
            body = encode(outcome)
            running.answer.set_result(body)
        del self._running[key]
        self._keep(key, running.digest, body)
        if running.task is not None and running.task is not asyncio.current_task():
            if not isinstance(outcome, Exception):
                running.broken_off(results.why_broken_off(outcome))
            running.task.cancel()
        if not self._running:
            self._idle.set()

    def _keep(self, key: CallKey, digest_: bytes, body: bytes | None) -> None:
        now = self._loop.time()
        kept = body if body is not None and len(body) <= self._keeping.results_bytes else None
        self._ended[key] = _Ended(digest_, now, now + self._keeping.keys_s, now + self._keeping.results_s, kept)
        if kept is not None:
            self._kept[key] = len(kept)
            self._kept_bytes += len(kept)
            while self._kept_bytes > self._keeping.results_bytes:
                self._drop(next(iter(self._kept)))
        self._tidy_in_time()

    def _tidy_in_time(self) -> None:
        """See to it that everything goes when its time is over, also where no call comes any more."""
        due = self._due()
        if due is None or (self._tidies is not None and self._tidies.when() <= due):
            return
        if self._tidies is not None:
            self._tidies.cancel()
        self._tidies = self._loop.call_at(due, self._on_time)

    def _due(self) -> float | None:
        """When the oldest of anything is too old (loop time); None: nothing is kept."""
        due = []
        if self._kept:
            due.append(self._ended[next(iter(self._kept))].drop_at)
        if self._ended:
            due.append(next(iter(self._ended.values())).forget_at)
        if self._tombstones:
            due.append(next(iter(self._tombstones.values())))
        return min(due, default=None)

    def _on_time(self) -> None:
        self._tidies = None
        self._tidy()
        self._tidy_in_time()

    def _drop(self, key: CallKey) -> None:
        """Drop a result; its key stays."""
        self._kept_bytes -= self._kept.pop(key)
        self._ended[key].body = None

    def _tidy(self) -> None:
        """Drop what is too old; all tables are in the order of their ends."""
        now = self._loop.time()
        while self._kept and self._ended[oldest := next(iter(self._kept))].drop_at <= now:
            self._drop(oldest)
        while self._ended and (len(self._ended) > MAX_KEYS or self._ended[next(iter(self._ended))].forget_at <= now):
            forgotten, _ = self._ended.popitem(last=False)
            if forgotten in self._kept:
                self._kept_bytes -= self._kept.pop(forgotten)
        while self._tombstones and (len(self._tombstones) > MAX_KEYS or next(iter(self._tombstones.values())) <= now):
            self._tombstones.popitem(last=False)
