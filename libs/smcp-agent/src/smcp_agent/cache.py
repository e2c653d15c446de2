"""Answers of Computers, cached until a notification invalidates them."""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from smcp_agent import errors
from smcp_agent.events import Event, ToolsChanged
from smcp_proto.backoff import Backoff
from smcp_proto.errors import no_such_computer
from smcp_proto.printable import did_you_mean
from smcp_proto.schemas import SMCPTool

MIB: Final = 1024 * 1024
MAX_ANSWERS: Final = 32
"""Answers that are kept."""
MAX_CACHED_BYTES: Final = 32 * MIB
"""Bytes of all kept answers, and of all tools of an office (`size_of`): some 7,000 tools of 700 bytes of JSON, and at
most 16,384, since long lists delay others in the process. Computers that came first keep their tools."""
BYTES_PER_VALUE: Final = 128
"""Bytes that Python takes for each value beside its text: the average of nested objects."""
MIN_TOOL_BYTES: Final = 2048
"""Bytes that each tool counts at least, since listing, naming and searching it takes time, too."""
READ_PER_S: Final = 16 * MIB
"""Bytes of tools (`size_of`) that are read for one office in a second: a tenth of the event loop's time."""
MIN_READ_BYTES: Final = MIB // 8
"""Bytes that each answer counts at least in `READ_PER_S`: the smallest takes 0.5 ms."""
ABANDONED_BYTES: Final = MIB // 4
"""Bytes that an answer counts if nobody waits for it any more: it is parsed as JSON, and no further."""
UNREADABLE_BYTES: Final = 8 * MIB
"""Bytes that a list counts if it cannot be read, and its size is thus unknown."""
READ_AT_ONCE: Final = 4
"""Computers of an office that are asked at a time: each answer may have some MiB."""
SLOT_S: Final = 1.0
"""Seconds after which a Computer that has not answered no longer counts in `READ_AT_ONCE`: the next is asked."""
TURN_S: Final = 0.001
"""How long one task works before others run: all offices of a process share one event loop, and a call of another one
takes some ten rounds of it."""
PASSING: Final = (errors.Unavailable, errors.TimedOut, errors.RateLimited)
"""Errors after which the same query may be answered."""

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Tools = tuple[SMCPTool, ...]
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


def size_of(found: object) -> int:
    """Estimated memory of a JSON value in bytes; overestimates. Does not look into texts: searching
    one of 30 MB takes a quarter of a second."""
    values, texts = [found], list[object]()
    for each in values:  # it grows meanwhile
        if isinstance(each, dict):
            values += each.values()
            texts += each
        elif isinstance(each, list):
            values += each
        else:
            texts.append(each)
    return BYTES_PER_VALUE * len(values) + sum(map(sys.getsizeof, texts)) - sys.getsizeof("") * len(texts)


async def in_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """These items, with a turn for others whenever the work on them has taken `TURN_S`."""
    began = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - began > TURN_S:
            await asyncio.sleep(0)
            began = time.monotonic()


class Query(NamedTuple):
    kind: Literal["desktop", "finder", "resources"]
    computer: str | None
    detail: str | None = None
    """For a finder its filters, for a list of resources the MCP server; None for all."""


@dataclass(slots=True)
class _Kept:
    answer: Any
    size: int
    asked_at: float
    """Loop time."""
    fetch: Callable[[], Awaitable[Any]]
    read: bool
    """Whether it was read, and not only fetched again."""


class AnswerCache:
    """Answers by query, the latest within `MAX_ANSWERS` and `MAX_CACHED_BYTES`. One is not kept if something
    was invalidated while it was fetched."""

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
                self._kept[query] = _Kept(answer, size_of(answer), asked_at, fetch, read)
                while (
                    len(self._kept) > MAX_ANSWERS or sum(each.size for each in self._kept.values()) > MAX_CACHED_BYTES
                ):
                    del self._kept[next(iter(self._kept))]
            return answer

        return await fetch(read=True)

    def invalidate(self, computer: str | None, *kinds: str, again: bool = False) -> None:
        """Forget what a Computer (None: any) answered to queries of these kinds (none: all kinds). With `again`, the
        answers that were read are fetched again."""
        self._changes += 1
        for query, kept in list(self._kept.items()):
            if (computer is None or query.computer in (computer, None)) and (not kinds or query.kind in kinds):
                del self._kept[query]
                if again and kept.read:
                    self._spawn(_without_error(kept.fetch))


async def _without_error(fetch: Callable[[], Awaitable[Any]]) -> None:
    with suppress(errors.SmcpError):
        await fetch()


class _ToolEntry:
    def __init__(self) -> None:
        self.tools: Tools | None = None
        self.size = 0
        """Of its tools in `MAX_CACHED_BYTES`."""
        self.pause_s = 0.0
        """How long its office waits after asking for its tools."""
        self.error: errors.SmcpError | None = None
        self.tried = asyncio.Event()
        self.changed = asyncio.Event()
        """Set until the tools are asked for once more."""
        self.task: asyncio.Task[None] | None = None
        self.is_news = True
        """Whether the next answer is an event if it differs."""


@dataclass(eq=False, repr=False)
class ToolCache:
    """The tools of each Computer, from `refresh` to `drop`; the known ones are given while they are asked for again.

    Computers may be hostile: all lists together stay within `MAX_CACHED_BYTES`, and are read at `READ_PER_S`. A
    Computer whose list does not fit beside those of the others has the error TooLarge, and keeps the tools that it had.
    """

    ask: Callable[[str], Awaitable[Tools]]
    spawn: Spawn
    publish: Callable[[Event], object]
    entries: dict[str, _ToolEntry] = field(default_factory=dict, init=False)
    _size: int = field(default=0, init=False)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READ_AT_ONCE), init=False)
    _free_at: float = field(default=0.0, init=False)
    """Loop time from which a Computer may be asked."""

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
            entry.task = self.spawn(self._keep(computer, entry))

    def drop(self, computer: str) -> None:
        entry = self.entries.pop(computer, None)
        if entry is None:
            return
        entry.tools, entry.error = None, errors.NotFound("the Computer left the office", details={"computer": computer})
        entry.tried.set()
        if entry.task is not None:
            entry.task.cancel()
        self._keep_size(entry, 0)

    async def get(self, computer: str) -> Tools:
        entry = self.entries.get(computer)
        if entry is None:
            raise no_such_computer(computer, which_computer(computer, self.entries))
        try:
            await entry.tried.wait()
        except asyncio.CancelledError:
            entry.is_news = True
            if entry.tools is not None:
                self.publish(ToolsChanged(computer, entry.tools))
            raise
        if entry.tools is None:
            assert entry.error is not None
            raise errors.without_traceback(entry.error)
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
            try:
                tools, is_other = await self._ask_in_turn(computer, entry)
            except errors.SmcpError as error:
                self._cost(entry, UNREADABLE_BYTES if isinstance(error, errors.BadReply) else 0)
                entry.error, entry.is_news = errors.without_traceback(error), True  # a traceback keeps the refused list
                entry.tried.set()
                if isinstance(error, errors.Closed):
                    return
                logger.warning("the tools of Computer %r: error %d: %s", computer, error.code, error.message)
                if isinstance(error, PASSING):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(backoff.next()):
                            await entry.changed.wait()
                    entry.changed.set()
                continue
            is_news, entry.is_news = entry.is_news and is_other, True
            entry.tried.set()
            if is_news:
                self.publish(ToolsChanged(computer, tools))

    async def _ask_in_turn(self, computer: str, entry: _ToolEntry) -> tuple[Tools, bool]:
        """Its tools, and whether they are others than before. Raises TooLarge: they do not fit; SmcpError."""
        loop = asyncio.get_running_loop()
        await self._turns.acquire()
        with ExitStack() as turn:
            turn.callback(self._turns.release)
            while (left_s := self._free_at - loop.time()) > 0:  # noqa: ASYNC110 -- it grows meanwhile
                await asyncio.sleep(left_s)
            self._free_at = loop.time() + entry.pause_s
            loop.call_later(SLOT_S, turn.close)
            entry.changed.clear()
            try:
                tools = await self.ask(computer)
            except asyncio.CancelledError:  # it left, or came again; its answer may still come, and is read
                self._cost(entry, ABANDONED_BYTES)
                raise
            return tools, await self._take(entry, tools)

    async def _take(self, entry: _ToolEntry, tools: Tools) -> bool:
        size = 0
        async for each in in_turns(tools):
            size += max(MIN_TOOL_BYTES, size_of(dict(each)))
        self._cost(entry, size)
        if size > (left := MAX_CACHED_BYTES - self._size + entry.size):
            why = f"the tool list is too large: {size} bytes; {left} of {MAX_CACHED_BYTES} are free in this office"
            raise errors.TooLarge(why, details={"size": size, "limit": MAX_CACHED_BYTES})
        is_other = tools != entry.tools
        entry.tools, entry.error = tools, None
        self._keep_size(entry, size)
        return is_other

    def _keep_size(self, entry: _ToolEntry, size: int) -> None:
        freed, self._size, entry.size = size < entry.size, self._size - entry.size + size, size
        for other in [name for name, each in self.entries.items() if freed and isinstance(each.error, errors.TooLarge)]:
            self.refresh(other)  # it may fit now

    def _cost(self, entry: _ToolEntry, size: int) -> None:
        before, entry.pause_s = entry.pause_s, max(MIN_READ_BYTES, size) / READ_PER_S
        self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + max(0.0, entry.pause_s - before)


def which_computer(written: str, there: Collection[str]) -> str:
    """The end of a sentence about an unknown Computer: one of `there` is meant, or the office has none."""
    return did_you_mean(written, there) if there else "; no Computer is in it: is the office's name right?"
