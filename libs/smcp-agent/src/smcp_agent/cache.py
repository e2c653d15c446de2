"""Answers of Computers that are kept as long as nothing says that they are old."""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from smcp_agent.background import not_open
from smcp_agent.errors import Closed, NotFound, RateLimited, SmcpError, TimedOut, Unavailable
from smcp_proto.schemas import SMCPTool

SIZE: Final = 256
ROUNDS: Final = 8
"""What changes again during each of so many questions is not waited for any longer."""
AT_ONCE: Final = 8
"""So many of what got old at the same moment are asked for again by themselves; the others when somebody asks."""

logger = logging.getLogger(__name__)

Key = TypeVar("Key")
Answer = TypeVar("Answer")

Tools = tuple[SMCPTool, ...]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


@dataclass(frozen=True, slots=True)
class Partial(Generic[Answer]):
    """An answer that lacks something that nobody will say when it is there again."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class _Fetched(Generic[Answer]):
    """What came of one question, and the time (of the cache) at which it was asked."""

    asked_at: int
    answer: Answer | None = None
    error: SmcpError | None = None


class _Entry(Generic[Answer]):
    def __init__(self, old_at: int) -> None:
        self.old_at = old_at
        """What was asked for before this time (of the cache) is old."""
        self.kept: _Fetched[Answer] | None = None
        self.task: asyncio.Task[_Fetched[Answer]] | None = None
        self.read = False
        """Whether somebody has asked for it since it was last fetched."""

    @property
    def fresh(self) -> bool:
        return self.kept is not None and self.kept.asked_at >= self.old_at


class AnswerCache(Generic[Key, Answer]):
    """Answers by what was asked for.

    An answer is given only if nothing has been said since it was asked for that makes it old: also where that is said
    while the question is under way, it is asked again. Only where that happens `ROUNDS` times in a row an answer is
    given that is known to be old by then; it was asked for after `get` was called, and is not kept. Errors are not
    kept. Who asks for the same at the same time shares one question.

    Args:
        fetch: asks. What it gives as `Partial` is given to who asked, and not kept.
        spawn: runs a question in the background; it goes on where nobody waits for it any more.
        again: whether what was read since it was fetched is asked for again by itself when it gets old.
        size: so many answers are kept; those go that were asked for least recently.
    """

    def __init__(
        self,
        fetch: Callable[[Key], Awaitable[Answer | Partial[Answer]]],
        spawn: Spawn,
        *,
        again: bool = False,
        size: int = SIZE,
    ) -> None:
        self._fetch = fetch
        self._spawn = spawn
        self._again = again
        self._size = size
        self._now = 0
        self._entries: OrderedDict[Key, _Entry[Answer]] = OrderedDict()

    async def get(self, key: Key) -> Answer:
        """The answer; asks only where none is kept that is not old.

        Raises:
            SmcpError: it was asked for and this is what came of it; Closed.
        """
        called_at, rounds = self._now, 0
        while True:
            entry = self._entry(key)
            fetched = entry.kept
            if fetched is None or not entry.fresh:
                fetched = await self._fetched(key, entry)
                asked_since = fetched.asked_at >= called_at
                if fetched.error is not None and asked_since:
                    raise fetched.error
                rounds += asked_since
                current = self._entries.get(key) is entry and fetched.asked_at >= entry.old_at
                if fetched.error is not None or not (current or rounds >= ROUNDS):
                    continue
            entry.read = True
            return cast("Answer", fetched.answer)

    def outdate(
        self, old: Callable[[Key, Answer | None], bool] = lambda _key, _answer: True, *, again: bool = True
    ) -> None:
        """What was asked for until now under the keys for which `old` is true is old.

        Args:
            old: is given the key, and the answer that is kept; None where there is none, or another is on its way.
            again: False: nothing is asked for by itself.
        """
        self._now += 1
        asked = 0
        for key, entry in list(self._entries.items()):
            if not old(key, entry.kept.answer if entry.kept and entry.task is None else None):
                continue
            entry.old_at = self._now
            if again and self._again and entry.read and entry.task is None and asked < AT_ONCE:
                self._start(key, entry)
                asked += 1

    def forget(self, gone: Callable[[Key], bool]) -> None:
        """Keep nothing under the keys for which `gone` is true."""
        self._now += 1
        for key in [key for key in self._entries if gone(key)]:
            del self._entries[key]

    def _entry(self, key: Key) -> _Entry[Answer]:
        entry = self._entries.get(key)
        if entry is None:
            # what was said of it while nothing was kept is not known
            entry = self._entries[key] = _Entry(self._now)
            self._make_room(key)
        self._entries.move_to_end(key)
        return entry

    def _make_room(self, new: Key) -> None:
        """Let go what was asked for least recently, but nothing that is being asked for."""
        idle = [key for key, entry in self._entries.items() if key != new and entry.task is None]
        for key in idle[: max(0, len(self._entries) - self._size)]:
            del self._entries[key]

    async def _fetched(self, key: Key, entry: _Entry[Answer]) -> _Fetched[Answer]:
        task = entry.task or self._start(key, entry)
        await asyncio.wait({task})  # whoever stops waiting does not end it for the others
        if task.cancelled():
            raise not_open()
        return task.result()

    def _start(self, key: Key, entry: _Entry[Answer]) -> asyncio.Task[_Fetched[Answer]]:
        entry.read = False
        entry.task = self._spawn(self._ask(key, entry))
        return entry.task

    async def _ask(self, key: Key, entry: _Entry[Answer]) -> _Fetched[Answer]:
        asked_at = self._now
        try:
            answer = await self._fetch(key)
            if isinstance(answer, Partial):
                return _Fetched(asked_at, answer=answer.answer)
            fetched = entry.kept = _Fetched(asked_at, answer=answer)
        except SmcpError as error:
            logger.debug("%r could not be asked for: %s", key, error.message)
            return _Fetched(asked_at, error=error)
        finally:
            entry.task = None
        return fetched


_RETRIED: Final = (Unavailable, TimedOut, RateLimited)
_FIRST_DELAY_S: Final = 0.5
_MAX_DELAY_S: Final = 30.0


class _ToolEntry:
    """One Computer's tools, and the task that fetches them while there is something to fetch."""

    def __init__(self) -> None:
        self.tools: Tools | None = None
        self.error: SmcpError | None = None
        self.stale = True
        self.first_try = asyncio.Event()
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class ToolCache:
    """One entry per Computer, from `refresh` to `drop`.

    Several refreshes while one fetch runs become one more fetch. A fetch that failed for a passing reason is repeated
    with growing pauses until it succeeds or the Computer is dropped.
    """

    def __init__(
        self,
        fetch: Callable[[str], Awaitable[Tools]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        changed: Callable[[str, Tools], None],
    ) -> None:
        self._fetch = fetch
        self._spawn = spawn
        self._changed = changed
        self._entries: dict[str, _ToolEntry] = {}

    def refresh(self, computer: str) -> None:
        """Fetch this Computer's tools (again)."""
        entry = self._entries.setdefault(computer, _ToolEntry())
        entry.stale = True
        entry.wake.set()
        if entry.task is None or entry.task.done():
            entry.task = self._spawn(self._keep(computer, entry))

    def drop(self, computer: str) -> None:
        """Forget a Computer that left."""
        entry = self._entries.pop(computer, None)
        if entry is None:
            return
        entry.tools = None
        entry.error = NotFound("the Computer left the office", details={"computer": computer})
        entry.first_try.set()
        if entry.task is not None:
            entry.task.cancel()

    async def get(self, computer: str) -> Tools:
        """What is known of the Computer's tools; waits only for its first fetch.

        Raises:
            SmcpError: there is no such Computer, or its tools could not be fetched so far.
        """
        entry = self._entries.get(computer)
        if entry is None:
            raise NotFound("no such Computer in the office", details={"computer": computer})
        await entry.first_try.wait()
        if entry.tools is None:
            assert entry.error is not None
            raise entry.error
        return entry.tools

    async def all(self) -> dict[str, Tools]:
        """The tools of all Computers, by name; one whose tools could not be fetched so far is left out."""
        for entry in list(self._entries.values()):
            await entry.first_try.wait()
        return self.known()

    def known(self) -> dict[str, Tools]:
        """As `all`, without waiting for anything."""
        return {name: entry.tools for name, entry in sorted(self._entries.items()) if entry.tools is not None}

    async def _keep(self, computer: str, entry: _ToolEntry) -> None:
        delay = _FIRST_DELAY_S
        while entry.stale:
            entry.stale = False
            entry.wake.clear()
            try:
                tools = await self._fetch(computer)
            except SmcpError as error:
                entry.error = error
                entry.first_try.set()
                if isinstance(error, Closed):  # the agent is being closed: nobody waits for its tools
                    return
                logger.warning("the tools of Computer %r could not be fetched: %s", computer, error.message)
                if isinstance(error, _RETRIED):
                    entry.stale = True
                    await _pause(entry.wake, delay)
                    delay = min(_MAX_DELAY_S, 2 * delay)
                continue
            delay = _FIRST_DELAY_S
            before, entry.tools, entry.error = entry.tools, tools, None
            entry.first_try.set()
            if tools != before:
                self._changed(computer, tools)


async def _pause(wake: asyncio.Event, delay: float) -> None:
    try:
        async with asyncio.timeout(delay * random.uniform(0.5, 1.5)):  # noqa: S311 -- jitter
            await wake.wait()
    except TimeoutError:
        return
