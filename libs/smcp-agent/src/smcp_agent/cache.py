"""Answers of Computers that are kept as long as nothing says that they are old."""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from smcp_agent.errors import Closed, NotFound, RateLimited, SmcpError, TimedOut, Unavailable, not_open
from smcp_proto.schemas import SMCPTool

SIZE: Final = 256
ROUNDS: Final = 8
"""What changes again during each of so many questions is not waited for any longer."""
_RETRIED: Final = (Unavailable, TimedOut, RateLimited)
_FIRST_DELAY_S: Final = 0.5
_MAX_DELAY_S: Final = 30.0

logger = logging.getLogger(__name__)

Key = TypeVar("Key")
Answer = TypeVar("Answer")
Tools = tuple[SMCPTool, ...]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


@dataclass(frozen=True, slots=True)
class Partial(Generic[Answer]):
    """An answer that lacks something, and that is not kept: nobody will say when the rest is there again."""

    answer: Answer


@dataclass(slots=True)
class _Entry(Generic[Answer]):
    old: bool = True
    """Whether `kept` is not to be given any more."""
    outdated: bool = False
    """Whether what is on its way, or has come last, was made old since it was asked for."""
    kept: Answer | None = None
    task: asyncio.Task[tuple[Answer | None, SmcpError | None]] | None = None
    read: bool = False
    """Whether somebody has asked for it since it was last fetched."""


class AnswerCache(Generic[Key, Answer]):
    """Answers by what was asked for.

    An answer is given only if nothing has been said since it was asked for that makes it old, also while the question
    is under way: then it is asked again, at most `ROUNDS` times. Errors are not kept. Who asks for the same at the same
    time shares one question.

    Args:
        fetch: asks.
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
        self._entries: OrderedDict[Key, _Entry[Answer]] = OrderedDict()

    async def get(self, key: Key) -> Answer:
        """The answer; asks only where none is kept that is not old.

        Raises SmcpError: it was asked for and this is what came of it; Closed.
        """
        answer: Answer | None = None
        for _ in range(ROUNDS):
            entry = self._entry(key)
            entry.read = True
            if not entry.old and entry.task is None:
                return cast("Answer", entry.kept)
            task = entry.task or self._start(key, entry)
            await asyncio.wait({task})  # whoever stops waiting does not end it for the others
            if task.cancelled():
                raise not_open()
            answer, error = task.result()
            if error is not None:
                raise error
            entry.read = True
            if self._entries.get(key) is entry and not entry.outdated:
                break
        return cast("Answer", answer)

    def outdate(
        self, old: Callable[[Key, Answer | None], bool] = lambda _key, _answer: True, *, again: bool = True
    ) -> None:
        """What was asked for until now under the keys for which `old` is true is old.

        Args:
            old: is given the key, and the answer that is kept; None where there is none, or another is on its way.
            again: False: nothing is asked for by itself.
        """
        for key, entry in list(self._entries.items()):
            if old(key, entry.kept if entry.task is None else None):
                entry.old = entry.outdated = True
                if again and self._again and entry.read and entry.task is None:
                    self._start(key, entry)

    def forget(self, gone: Callable[[Key], bool]) -> None:
        """Keep nothing under the keys for which `gone` is true."""
        for key in [key for key in self._entries if gone(key)]:
            del self._entries[key]

    def _entry(self, key: Key) -> _Entry[Answer]:
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        idle = [other for other, each in self._entries.items() if other != key and each.task is None]
        for other in idle[: max(0, len(self._entries) - self._size)]:
            del self._entries[other]
        return entry

    def _start(self, key: Key, entry: _Entry[Answer]) -> asyncio.Task[tuple[Answer | None, SmcpError | None]]:
        entry.read = entry.outdated = False
        entry.task = self._spawn(self._ask(key, entry))
        return entry.task

    async def _ask(self, key: Key, entry: _Entry[Answer]) -> tuple[Answer | None, SmcpError | None]:
        try:
            answer = await self._fetch(key)
        except SmcpError as error:
            logger.debug("%r could not be asked for: %s", key, error.message)
            return None, error
        finally:
            entry.task = None
        if isinstance(answer, Partial):
            return answer.answer, None
        entry.kept, entry.old = answer, entry.outdated
        return answer, None


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

        Raises SmcpError: there is no such Computer, or its tools could not be fetched so far.
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
                    with suppress(TimeoutError):
                        async with asyncio.timeout(delay * random.uniform(0.5, 1.5)):  # noqa: S311 -- jitter
                            await entry.wake.wait()
                    delay = min(_MAX_DELAY_S, 2 * delay)
                continue
            delay = _FIRST_DELAY_S
            before, entry.tools, entry.error = entry.tools, tools, None
            entry.first_try.set()
            if tools != before:
                self._changed(computer, tools)
