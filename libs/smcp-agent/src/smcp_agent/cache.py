"""Answers of Computers, cached until a notification outdates them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from smcp_agent.errors import Closed, NotFound, RateLimited, SmcpError, TimedOut, Unavailable
from smcp_agent.events import Event, ToolsChanged
from smcp_proto.backoff import Backoff
from smcp_proto.errors import no_such_computer
from smcp_proto.printable import did_you_mean
from smcp_proto.schemas import SMCPTool

MAX_ANSWERS: Final = 32
"""Answers that are kept; each may have some MiB."""
PASSING: Final = (Unavailable, TimedOut, RateLimited)
"""Errors after which the same query may be answered."""

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Tools = tuple[SMCPTool, ...]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class Query(NamedTuple):
    kind: Literal["desktop", "finder", "resources"]
    computer: str | None
    detail: str | None = None
    """For a finder its filters, for a list of resources the MCP server; None for all."""


@dataclass(slots=True)
class _Kept:
    answer: Any
    asked_at: float
    """Loop time."""
    fetch: Callable[[], Awaitable[Any]]
    read: bool
    """Whether it was read, and not only fetched again."""


class AnswerCache:
    """Answers by query, the latest `MAX_ANSWERS`. One during whose query anything was outdated is not kept."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._kept: dict[Query, _Kept] = {}
        self._changes = 0
        self.used = False
        """Whether anything was asked for."""

    async def get(
        self,
        query: Query,
        ask: Callable[[], Awaitable[Answer]],
        *,
        keep: Callable[[Answer], bool] = lambda _: True,
        max_age: float | None = None,
    ) -> Answer:
        """The kept answer if it is up to date and at most `max_age` seconds old, else that of `ask`. `keep` tells
        whether an answer may be kept. Raises what `ask` raises."""
        self.used = True
        kept = self._kept.get(query)
        if kept is not None and (max_age is None or asyncio.get_running_loop().time() - kept.asked_at <= max_age):
            kept.read = True
            return cast("Answer", kept.answer)

        async def fetch(*, read: bool = False) -> Answer:
            changes, asked_at = self._changes, asyncio.get_running_loop().time()
            answer = await ask()
            if changes == self._changes and keep(answer):
                self._kept.pop(query, None)
                self._kept[query] = _Kept(answer, asked_at, fetch, read)
                if len(self._kept) > MAX_ANSWERS:
                    del self._kept[next(iter(self._kept))]
            return answer

        return await fetch(read=True)

    def outdate(self, computer: str | None, *kinds: str, again: bool = False) -> None:
        """Forget what a Computer (None: any) answered to queries of these kinds (none: all kinds). With `again`, the
        answers that were read are fetched again."""
        self._changes += 1
        for query, kept in list(self._kept.items()):
            if (computer is None or query.computer in (computer, None)) and (not kinds or query.kind in kinds):
                del self._kept[query]
                if again and kept.read:
                    self._spawn(_without_error(kept.fetch))


async def _without_error(fetch: Callable[[], Awaitable[Any]]) -> None:
    with suppress(SmcpError):
        await fetch()


class _ToolEntry:
    def __init__(self) -> None:
        self.tools: Tools | None = None
        self.error: SmcpError | None = None
        self.tried = asyncio.Event()
        self.changed = asyncio.Event()
        """Set until the tools are asked for once more."""
        self.task: asyncio.Task[None] | None = None
        self.is_news = True
        """Whether the next answer is an event if it differs."""


class ToolCache:
    """The tools of each Computer, from `refresh` to `drop`; the known ones are given while they are asked for again."""

    def __init__(
        self, ask: Callable[[str], Awaitable[Tools]], spawn: Spawn, publish: Callable[[Event], object]
    ) -> None:
        self._ask = ask
        self._spawn = spawn
        self._publish = publish
        self.entries: dict[str, _ToolEntry] = {}

    def refresh(self, computer: str, *, restart: bool = False, is_news: bool = True) -> None:
        """Ask for this Computer's tools (again). `restart`: also if a query runs, as the Computer has just come.
        `is_news`: whether the first answer is an event; it is one anyway where somebody could not wait for it."""
        if (entry := self.entries.get(computer)) is None:
            entry = self.entries[computer] = _ToolEntry()
            entry.is_news = is_news
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
        entry = self.entries.get(computer)
        if entry is None:
            raise no_such_computer(computer, did_you_mean(computer, self.entries))
        try:
            await entry.tried.wait()
        except asyncio.CancelledError:
            entry.is_news = True
            if entry.tools is not None:
                self._publish(ToolsChanged(computer, entry.tools))
            raise
        if entry.tools is None:
            assert entry.error is not None
            raise entry.error
        return entry.tools

    def known(self, computer: str, tool: str) -> SMCPTool | None:
        entry = self.entries.get(computer)
        return next((each for each in (entry.tools if entry else None) or () if each.name == tool), None)

    async def all(self) -> dict[str, Tools]:
        unknown = [each for each in self.entries.values() if not each.tried.is_set()]
        try:
            for entry in unknown:
                await entry.tried.wait()
        except asyncio.CancelledError:
            for entry in unknown:
                entry.is_news = True
            raise
        return {name: entry.tools for name, entry in sorted(self.entries.items()) if entry.tools is not None}

    async def _keep(self, computer: str, entry: _ToolEntry) -> None:
        backoff = Backoff()
        while entry.changed.is_set():
            entry.changed.clear()
            try:
                tools = await self._ask(computer)
            except SmcpError as error:
                entry.error, entry.is_news = error, True
                entry.tried.set()
                if isinstance(error, Closed):
                    return
                logger.warning("no tools of Computer %r: error %d: %s", computer, error.code, error.message)
                if isinstance(error, PASSING):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(backoff.next()):
                            await entry.changed.wait()
                    entry.changed.set()
                continue
            is_news, entry.is_news = entry.is_news and tools != entry.tools, True
            entry.tools = tools
            entry.tried.set()
            if is_news:
                self._publish(ToolsChanged(computer, tools))
