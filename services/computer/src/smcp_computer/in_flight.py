"""The calls of this Computer: each runs once, has one answer, and can be cancelled.

A call is known by `(office, agent, req_id)`. The same call again (same tool and parameters) joins the one that runs, or
is answered from the records of those that have ended (`smcp_bus.call_records`); another call under the same key is
refused. Whatever settles a call first (its result, its time, a cancel) is its answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from smcp_bus import exact_json
from smcp_bus.call_records import CallRecords, Keeping, digest_of, same_call
from smcp_computer import results

CallKey = tuple[str, str, str]
"""(office, agent, req_id)"""

Run = Callable[[], Awaitable[Mapping[str, Any]]]
"""Runs the tool: its `CallToolResult` as JSON. What it raises is an error of the protocol."""

BrokenOff = Callable[[str], None]
"""Told why, just before a tool that still runs is cancelled."""

TimedOut = Callable[[str, float], Mapping[str, Any]]
"""The result of a call whose time is over, from its tool and its seconds."""


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


class InFlight:
    """Leaving it cancels what still runs."""

    def __init__(self, keeping: Keeping | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: dict[CallKey, _Running] = {}
        self._records: CallRecords[CallKey, CallKey] = CallRecords(keeping)
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._held_since: float | None = None
        """Since when this Computer has its seat without interruption (loop time)."""

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
        self._records.close()

    @property
    def kept(self) -> int:
        """How many results are kept now."""
        return self._records.kept

    @property
    def running(self) -> int:
        """How many calls run now."""
        return len(self._running)

    def held(self) -> dict[str, int]:
        """How many of all that calls cause it holds now."""
        return {"calls": len(self._running), "tool_tasks": len(self._tasks), **self._records.held()}

    async def wait_idle(self) -> None:
        """Return when no call runs."""
        await self._idle.wait()

    def placed(self, new: bool) -> None:
        """The Computer has its place in the office: a new one, or the one that it had."""
        if new or self._held_since is None:
            self._held_since = self._loop.time()

    def knows(self, key: CallKey) -> bool:
        """Whether the call runs here, or ended here."""
        return key in self._running or self._records.find(key) is not None

    def answered(self, key: CallKey) -> bool:
        """Whether the call ended here so long ago that its answer should have arrived."""
        return self._records.answered(key)

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
        repeat: bool | int | None = None,
    ) -> bytes:
        """Run a call, or join it, or give its kept result.

        Args:
            limit: seconds after which it is answered as timed out, and cancelled.
            run: runs the tool; awaited in a task of its own.
            broken_off: told why before that task is cancelled.
            timed_out: what is answered when `limit` is over.
            repeat: the request's `a2c_repeat`.

        Returns:
            A `CallToolResult` as JSON.

        Raises:
            Malformed: the key was used for another call.
            Unavailable: see `CallRecords.replay`.
            Whatever `run` raises.
        """
        digest = digest_of(tool, params)
        known = self._running.get(key)
        if known is not None:
            same_call(known.digest, digest)
            known.asked_at = self._loop.time()
            return await asyncio.shield(known.answer)
        replayed = self._records.replay(key, key, tool=tool, digest=digest, repeat=repeat, held_since=self._held_since)
        if replayed is not None:
            return replayed
        answer: asyncio.Future[bytes] = self._loop.create_future()
        running = _Running(digest, tool, limit, answer, broken_off, timed_out, self._loop.time())
        self._start(key, running, run)
        return await asyncio.shield(running.answer)

    def cancel(self, key: CallKey) -> bool:
        """Answer the call as cancelled and stop it; one that is not known yet will not run. Idempotent.

        Returns:
            Whether it ran.
        """
        running = self._running.get(key)
        if running is not None:
            self._settle(key, results.cancelled(running.tool))
            return True
        if self._records.find(key) is None:
            self._records.bury(key)
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
            body = exact_json.written(outcome)
            running.answer.set_result(body)
        del self._running[key]
        self._records.end(key, running.digest, body)
        if running.task is not None and running.task is not asyncio.current_task():
            if not isinstance(outcome, Exception):
                running.broken_off(results.why_broken_off(outcome))
            running.task.cancel()
        if not self._running:
            self._idle.set()
