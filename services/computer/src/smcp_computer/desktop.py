"""The desktop of this Computer: the windows of all MCP servers that tell of changes, read side by side, organized."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.mcp.errors import AnswerTooLarge, ServerError, ServerTimedOut
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.resources import SHOWN, Json, Resources
from smcp_computer.reply_limits import giving_way, reply_limit
from smcp_computer.resources.index import History, ResourceIndex, SkippedServers
from smcp_computer.resources.replies import too_large
from smcp_computer.resources.routing import window_uri
from smcp_computer.resources.warn_once import WarnOnce
from smcp_proto.desktop import OrganizedDesktop, Window, organize_desktop
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.tools import GetDeskTopReq
from smcp_proto.uris import WINDOW, WindowUri, scheme_of

_log = logging.getLogger("smcp_computer.desktop")

OPERATION: Final = "get_desktop"
GRACE_S: Final = 0.5
"""How much later than its deadline a server's part may come: what is behind it has timed out by then."""

AT_ONCE: Final = 16
"""Windows that one server is asked for at a time."""


@dataclass(frozen=True, slots=True)
class Unread:
    uri: str
    why: ServerError


@dataclass(frozen=True, slots=True)
class _Part:
    windows: list[Window]
    unread: list[Unread] = field(default_factory=list)
    """Windows that are left out."""
    is_missing: bool = False
    """It did not list its windows."""

    @property
    def missing(self) -> int:
        """How many windows, or lists of windows, a later request may get."""
        return self.is_missing + sum(not isinstance(one.why, AnswerTooLarge) for one in self.unread)


class Desktop:
    """Args:
    read_s: how long the MCP servers may take, in seconds. What is missing then is left out; the next read tries
        again.
    max_body: bytes that an answer may have on the bus.
    """

    def __init__(
        self,
        index: ResourceIndex,
        history: History,
        skipped: SkippedServers,
        events: ServerEvents,
        *,
        read_s: float,
        max_body: int,
    ) -> None:
        self._index = index
        self._history = history
        self._skipped = skipped
        self._read_s = read_s
        self._max_body = max_body
        self._warnings = WarnOnce(_log, events)
        self._left: set[asyncio.Task[_Part]] = set()
        """Broken off: to a server that reads nothing, even that takes the SDK some seconds."""

    async def show(
        self, size: int | None, window: str | None, *, left: float, limit: int, around: int = 0
    ) -> tuple[list[bytes], int]:
        """The windows as text, each in JSON, in the order of desktop.txt; and how many could not be read now.

        A server that fails or is slow costs its own windows, and a warning in the log: one for each cause. So does a
        window that is too large; of windows that are too large together the largest are left out, as few as can be.

        Args:
            size: at most so many; 0 or less: none; None: all.
            window: only the windows with this URI; None: all. None has it: an empty list.
            left: seconds that the caller waits.
            limit: bytes that the answer may have.
            around: bytes that it has beside the windows and the commas between them.

        Raises:
            TooLarge: all that was left out was asked for by its URI, so nothing is left.
        """
        only = None if window is None else window_uri(window)
        if (window is not None and only is None) or (size is not None and size <= 0):
            return [], 0
        self._skipped.count(OPERATION, self._index.without_resources())
        within = max(min(self._read_s, left), 0.0)
        deadline = asyncio.get_running_loop().time() + within
        reading = {
            server: asyncio.create_task(self._of_server(server, only, deadline, limit), name=f"desktop:{server}")
            for server in self._index.servers(subscribable=True)
        }
        try:
            if reading:
                await asyncio.wait(reading.values(), timeout=within + GRACE_S)
            parts = [self._result(server, task) for server, task in reading.items()]
        finally:
            self._leave(reading.values())
        organized = organize_desktop([window for part in parts for window in part.windows], size, self._history.servers)
        for doubt in organized.warnings:
            self._warnings.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        shown = self._fitting(organized, limit, around)
        if only is not None and not shown:
            for part in parts:
                for one in part.unread:
                    if isinstance(one.why, AnswerTooLarge):
                        raise too_large(one.why)
            if organized.desktops:
                raise TooLarge("the window is larger than the answer may be", details={"limit": limit})
        return shown, sum(part.missing for part in parts)

    async def aclose(self) -> None:
        if self._left:
            await asyncio.wait(self._left)

    async def _of_server(self, server: str, only: WindowUri | None, deadline: float, limit: int) -> _Part:
        try:
            rest = max(deadline - asyncio.get_running_loop().time(), 0.0)
            listing = await self._index.list(server, timeout=rest)
            resources = self._index.connection(server)
        except ServerError as error:
            self._warnings.warn(server, f"its windows are left out of the desktop: it {error.what}")
            return _Part([], is_missing=True)
        windows, unread = await read_windows(
            resources, windows_of(listing.values(), only), deadline=deadline, max_bytes=limit
        )
        for one in unread:
            self._warnings.warn(server, f"{one.uri[:SHOWN]} is left out of the desktop: it {one.why.what}")
        return _Part(windows, unread)

    def _fitting(self, organized: OrganizedDesktop, limit: int, around: int) -> list[bytes]:
        shown = [orjson.dumps(text) for text in organized.desktops]
        sizes = [len(text) for text in shown]
        gone = giving_way(sizes, [size + 1 for size in sizes], limit - around)
        for number in sorted(gone):
            server, uri = organized.sources[number]
            why = f"together the windows are larger than the answer may be, {limit} bytes"
            self._warnings.warn(server, f"{uri[:SHOWN]} is left out of the desktop: {why}")
        return [text for number, text in enumerate(shown) if number not in gone]

    def _result(self, server: str, task: asyncio.Task[_Part]) -> _Part:
        if task.done():
            return task.result()
        self._warnings.warn(server, "its windows are left out of the desktop: it does not take requests")
        return _Part([], is_missing=True)

    def _leave(self, tasks: Iterable[asyncio.Task[_Part]]) -> None:
        for task in tasks:
            if not task.done():
                task.cancel()
                self._left.add(task)
                task.add_done_callback(self._left.discard)


async def read_windows(
    resources: Resources, listed: Iterable[Json], *, deadline: float, max_bytes: int
) -> tuple[list[Window], list[Unread]]:
    """The windows in the order in which they are listed, and those that are left out.

    Args:
        deadline: loop time (seconds).
        max_bytes: of the texts of one window; a larger one is left out. What is never shown does not count.
    """
    found: dict[int, Window] = {}
    unread: list[Unread] = []
    wanted = list(listed)
    left = iter(enumerate(wanted))

    async def some() -> None:
        for number, resource in left:
            try:
                found[number] = await _read(resources, resource, deadline, max_bytes)
            except ServerError as error:
                unread.append(Unread(resource["uri"], error))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(AT_ONCE, len(wanted))):
            tasks.create_task(some())
    return [found[number] for number in sorted(found)], unread


def windows_of(listed: Iterable[Json], only: WindowUri | None) -> Iterator[Json]:
    for resource in listed:
        uri = resource["uri"]
        if scheme_of(uri) == WINDOW and (only is None or window_uri(uri) == only):
            yield resource


async def _read(resources: Resources, resource: Json, deadline: float, max_bytes: int) -> Window:
    uri = resource["uri"]
    rest = deadline - asyncio.get_running_loop().time()
    if rest <= 0:
        raise ServerTimedOut(resources.server, "did not answer in time")
    contents = (await resources.read(uri, timeout=rest))["contents"]
    if (size := _size(contents)) > max_bytes:
        raise AnswerTooLarge(resources.server, limit=max_bytes, size=size)
    return Window(resources.server, resource, contents)


def _size(contents: list[Any]) -> int:
    """Of what is shown: a bound from below, in bytes, that costs nothing."""
    return sum(
        len(text) for content in contents if isinstance(content, dict) and isinstance(text := content.get("text"), str)
    )


ANSWER_S: Final = 1.0
"""Of the time that the caller waits, what is kept for the answer."""
_HEAD: Final = b'{"desktops":['
MISSING_BYTES: Final = 32
"""Room for `a2c_missing`."""


async def get_desktop(request: GetDeskTopReq, call: Call, *, desktop: Desktop, max_body: int) -> RawJson:
    """A GetDeskTopRet, without the windows for which the answer has no room.

    Raises:
        TooLarge: the window that was asked for (`window`) is larger than the answer may be.
    """
    left = call.deadline - asyncio.get_running_loop().time() - ANSWER_S
    tail = b'],"req_id":%b}' % orjson.dumps(request.req_id)
    shown, missing = await desktop.show(
        request.desktop_size,
        request.window,
        left=left,
        limit=reply_limit(call, max_body),
        around=len(_HEAD) + len(tail) + MISSING_BYTES,
    )
    if missing:
        tail = b'],"a2c_missing":%d,%b' % (missing, tail[2:])
    return RawJson(b"".join((_HEAD, b",".join(shown), tail)))
