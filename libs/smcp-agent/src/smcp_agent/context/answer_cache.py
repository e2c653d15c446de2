"""Answers of Computers that are kept as long as nothing says that they are old."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from smcp_agent.background import not_open
from smcp_agent.errors import SmcpError

SIZE: Final = 256
ROUNDS: Final = 8
"""What changes again during each of so many questions is not waited for any longer."""
AT_ONCE: Final = 8
"""So many of what got old at the same moment are asked for again by themselves; the others when somebody asks."""

logger = logging.getLogger(__name__)

Key = TypeVar("Key")
Answer = TypeVar("Answer")

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
