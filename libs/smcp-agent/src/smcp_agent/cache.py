"""Answers of Computers, cached until a notification outdates them."""

import asyncio
import logging
import math
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from smcp_agent.errors import (
    Closed,
    NotFound,
    RateLimited,
    SmcpError,
    TimedOut,
    Unavailable,
    not_among,
    not_open,
    unanswered_message,
)
from smcp_agent.events import Event, ToolsChanged
from smcp_proto.backoff import Backoff
from smcp_proto.schemas import SMCPTool

MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes that all cached answers may take in memory."""
MIN_BYTES: Final = MAX_BYTES // 512
"""Each answer counts as so many bytes at least: a notification compares all of them with what changed."""
ROUNDS: Final = 8
"""An answer that is outdated during each of so many queries is given all the same."""
PASSING: Final = (Unavailable, TimedOut, RateLimited)
"""Errors after which the same query may be answered."""

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Tools = tuple[SMCPTool, ...]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


@dataclass(frozen=True)
class Query:
    """A query to a Computer; None: to all."""

    computer: str | None


@dataclass(slots=True)
class _Entry:
    ask: Callable[[], Awaitable[Any]]
    keep: Callable[[Any], bool]
    again: bool
    version: int = 0
    """Grows whenever something outdates the answer."""
    kept: Any = None
    kept_version: int = -1
    kept_at: float = 0.0
    """When it was asked for (loop time)."""
    task: asyncio.Task[tuple[Any, int]] | None = None
    """The query under way; its result is an answer or an error, and the version at which it was asked."""
    waiting: int = 0
    """Callers that wait for the query."""
    size: int = MIN_BYTES
    """Bytes that the kept answer counts as."""
    read: bool = False
    """Whether it was read since it was last fetched."""


class AnswerCache:
    """Answers by query, at most `max_bytes` of them: the least recently used go, and a larger one is not kept.

    An answer that is outdated while it is asked for is asked for again, at most `ROUNDS` times. Errors are not kept.
    Concurrent callers share one query, which goes on in the background when its callers have gone.
    """

    def __init__(self, spawn: Spawn, *, max_bytes: int = MAX_BYTES) -> None:
        self._spawn = spawn
        self._max_bytes = max_bytes
        self.entries: OrderedDict[Query, _Entry] = OrderedDict()
        """Read-only for other classes: they only test whether it is empty."""

    async def get(
        self,
        query: Query,
        ask: Callable[[], Awaitable[Answer]],
        *,
        keep: Callable[[Answer], bool] = lambda _: True,
        again: bool = False,
        max_age: float | None = None,
    ) -> Answer:
        """The answer; asks only where none is kept that is up to date.

        Args:
            ask: fetches it.
            keep: whether an answer may be kept.
            again: whether an answer that was read is fetched again by itself when it is outdated.
            max_age: seconds; an older answer is asked for again, though nothing outdated it. None: it counts.

        Raises SmcpError: `ask` raised it; Closed.
        """
        answer: Any = None
        oldest = -math.inf if max_age is None else asyncio.get_running_loop().time() - max_age
        for _ in range(ROUNDS):
            entry = self.entries.setdefault(query, _Entry(ask, keep, again))
            self.entries.move_to_end(query)
            entry.read = True
            if entry.task is None and entry.kept_version == entry.version and entry.kept_at >= oldest:
                return cast("Answer", entry.kept)
            task = entry.task or self._start(entry)
            entry.waiting += 1
            try:
                await asyncio.wait({task})  # cancelling one caller does not end the query for the others
                if task.cancelled():
                    raise not_open()
                answer, version = task.result()
                if isinstance(answer, SmcpError):
                    raise answer
                entry.read = True
                if self.entries.get(query) is entry and entry.version == version:
                    break
            finally:
                entry.waiting -= 1
                self._shrink()
        return cast("Answer", answer)

    def outdate(self, old: Callable[[Query, Any], bool], *, again: bool = True) -> None:
        """Outdate the answers for which `old` is true: it gets the query, and the kept answer or None. With `again`,
        those that were read are fetched again."""
        for query, entry in list(self.entries.items()):
            if old(query, entry.kept if entry.task is None else None):
                entry.version += 1
                if again and entry.again and entry.read and entry.task is None:
                    self._start(entry)

    def forget(self, computer: str) -> None:
        """Keep nothing that this Computer answered."""
        for query in [query for query in self.entries if query.computer in (computer, None)]:
            del self.entries[query]

    def _shrink(self) -> None:
        excess = sum(entry.size for entry in self.entries.values()) - self._max_bytes
        for query, entry in list(self.entries.items()):
            if excess > 0 and entry.task is None and not entry.waiting:
                del self.entries[query]
                excess -= entry.size

    def _start(self, entry: _Entry) -> asyncio.Task[tuple[Any, int]]:
        entry.read = False
        entry.task = self._spawn(self._ask(entry))
        return entry.task

    async def _ask(self, entry: _Entry) -> tuple[Any, int]:
        version, at = entry.version, asyncio.get_running_loop().time()
        try:
            answer = await entry.ask()
        except SmcpError as error:
            return error, version
        finally:
            entry.task = None
        size = max(MIN_BYTES, _memory(answer))
        if entry.keep(answer) and size <= self._max_bytes:
            entry.kept, entry.kept_version, entry.kept_at, entry.size = answer, version, at, size
            self._shrink()
        return answer, version


def _memory(answer: object) -> int:
    """Bytes that an answer of dicts, lists and scalars takes; what occurs twice counts twice."""
    total, parts = 0, [answer]
    while parts:
        part = parts.pop()
        total += sys.getsizeof(part)
        if isinstance(part, Mapping):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part
    return total


class _ToolEntry:
    def __init__(self) -> None:
        self.tools: Tools | None = None
        self.error: SmcpError | None = None
        self.tried = asyncio.Event()
        self.changed = asyncio.Event()
        """Set until the tools are asked for once more."""
        self.task: asyncio.Task[None] | None = None


class ToolCache:
    """The tools of each Computer, from `refresh` to `drop`; the known ones are given while they are asked for again. A
    query that failed for a passing reason is repeated with growing pauses."""

    def __init__(self, ask: Callable[[str], Awaitable[Tools]], spawn: Spawn, publish: Callable[[Event], None]) -> None:
        self._ask = ask
        self._spawn = spawn
        self._publish = publish
        self.entries: dict[str, _ToolEntry] = {}

    def refresh(self, computer: str, *, restart: bool = False) -> None:
        """Ask for this Computer's tools (again). `restart`: also if a query runs, as the Computer has just come."""
        entry = self.entries.setdefault(computer, _ToolEntry())
        entry.changed.set()
        if entry.task is not None and restart:
            entry.task.cancel()
        if entry.task is None or entry.task.done() or restart:
            entry.task = self._spawn(self._keep(computer, entry))

    def drop(self, computer: str) -> None:
        entry = self.entries.pop(computer, None)
        if entry is None:
            return
        entry.tools, entry.error = None, NotFound("the Computer left the office", details={"computer": computer})
        entry.tried.set()
        if entry.task is not None:
            entry.task.cancel()

    async def get(self, computer: str) -> Tools:
        """The known tools; waits only for the first answer. Raises SmcpError as `SmcpAgent.tools`."""
        entry = self.entries.get(computer)
        if entry is None:
            what = f"there is no Computer {computer!r} in the office"
            raise not_among(what, computer, sorted(self.entries), {"computer": computer})
        await entry.tried.wait()
        if entry.tools is None:
            assert entry.error is not None
            raise entry.error
        return entry.tools

    def known(self, computer: str, tool: str) -> SMCPTool | None:
        """A tool, if it is known by now."""
        entry = self.entries.get(computer)
        return next((each for each in (entry.tools if entry else None) or () if each.name == tool), None)

    async def all(self) -> dict[str, Tools]:
        """The tools of all Computers, by name; one whose tools could not be fetched so far is left out."""
        for entry in list(self.entries.values()):
            await entry.tried.wait()
        return {name: entry.tools for name, entry in sorted(self.entries.items()) if entry.tools is not None}

    async def _keep(self, computer: str, entry: _ToolEntry) -> None:
        backoff = Backoff()
        while entry.changed.is_set():
            entry.changed.clear()
            try:
                tools = await self._ask(computer)
            except SmcpError as error:
                entry.error = error
                entry.tried.set()
                if isinstance(error, Closed):
                    return
                logger.warning("the tools of Computer %r %s: %s", computer, unanswered_message(error), error.message)
                if isinstance(error, PASSING):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(backoff.next()):
                            await entry.changed.wait()
                    entry.changed.set()
                continue
            is_other, entry.tools = tools != entry.tools, tools
            entry.tried.set()
            if is_other:
                self._publish(ToolsChanged(computer, tools))
