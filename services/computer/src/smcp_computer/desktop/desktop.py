"""The desktop of this Computer: the windows of all MCP servers that tell of changes, read side by side, organized."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import orjson

from smcp_computer.desktop.reading import read_windows, windows_of
from smcp_computer.fitting import giving_way
from smcp_computer.mcp.errors import AnswerTooLarge, ServerError
from smcp_computer.mcp.events import ServerEvent, ServerReady
from smcp_computer.mcp.resources import SHOWN
from smcp_computer.resources.causes import Causes
from smcp_computer.resources.errors import too_large
from smcp_computer.resources.history import History
from smcp_computer.resources.index import Listing, ResourceIndex
from smcp_computer.resources.patience import Patience
from smcp_computer.resources.routing import window_uri
from smcp_computer.resources.skipped import SkippedServers
from smcp_proto.desktop import OrganizedDesktop, Window, organize_desktop
from smcp_proto.errors import TooLarge
from smcp_proto.uris import WindowUri

_log = logging.getLogger("smcp_computer.desktop")

OPERATION: Final = "get_desktop"
GRACE_S: Final = 0.5
"""How much later than its deadline a server's part may come: what is behind it has timed out by then."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one MCP server gave."""

    windows: list[Window]
    too_large: AnswerTooLarge | None = None
    """Of a window that is left out for it."""


class Desktop:
    """Args:
    patience: waits for the servers' lists.
    read_s: how long the MCP servers may take, in seconds; what is not there then is left out.
    """

    def __init__(
        self,
        index: ResourceIndex,
        history: History,
        skipped: SkippedServers,
        patience: Patience,
        *,
        read_s: float,
    ) -> None:
        self._index = index
        self._history = history
        self._skipped = skipped
        self._patience = patience
        self._read_s = read_s
        self._causes = Causes(_log)
        self._left: set[asyncio.Task[_Part]] = set()
        """Broken off: to a server that reads nothing, even that takes the SDK some seconds."""

    async def show(
        self, size: int | None, window: str | None, *, left: float, limit: int, around: int = 0
    ) -> list[bytes]:
        """The windows as text, each in JSON, in the order of desktop.txt.

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
            return []
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
            self._causes.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        shown = self._fitting(organized, limit, around)
        if only is not None and not shown:
            for part in parts:
                if part.too_large is not None:
                    raise too_large(part.too_large)
            if organized.desktops:
                raise TooLarge("the window is larger than the answer may be", details={"limit": limit})
        return shown

    async def aclose(self) -> None:
        """Wait for what is being broken off."""
        if self._left:
            await asyncio.wait(self._left)

    def on_event(self, event: ServerEvent) -> None:
        """A server that was started anew: what was said in the log of it may be said again."""
        if isinstance(event, ServerReady):
            self._causes.forget(event.server)

    async def _of_server(self, server: str, only: WindowUri | None, deadline: float, limit: int) -> _Part:
        rest = deadline - asyncio.get_running_loop().time()
        try:
            listing = await self._patience.ask("resources", server, partial(self._list, server), max(rest, 0.0))
            resources = self._index.connection(server)
        except ServerError as error:
            self._causes.warn(server, f"its windows are left out of the desktop: it {error.what}")
            return _Part([])
        windows, unread = await read_windows(
            resources, windows_of(listing.values(), only), deadline=deadline, max_bytes=limit
        )
        for one in unread:
            self._causes.warn(server, f"{one.uri[:SHOWN]} is left out of the desktop: it {one.why.what}")
        return _Part(windows, next((one.why for one in unread if isinstance(one.why, AnswerTooLarge)), None))

    def _fitting(self, organized: OrganizedDesktop, limit: int, around: int) -> list[bytes]:
        shown = [orjson.dumps(text) for text in organized.desktops]
        sizes = [len(text) for text in shown]
        gone = giving_way(sizes, [size + 1 for size in sizes], limit - around)
        for number in sorted(gone):
            server, uri = organized.sources[number]
            why = f"together the windows are larger than the answer may be, {limit} bytes"
            self._causes.warn(server, f"{uri[:SHOWN]} is left out of the desktop: {why}")
        return [text for number, text in enumerate(shown) if number not in gone]

    async def _list(self, server: str, timeout: float) -> Listing:
        return await self._index.list(server, timeout=timeout)

    def _result(self, server: str, task: asyncio.Task[_Part]) -> _Part:
        if task.done():
            return task.result()
        self._causes.warn(server, "its windows are left out of the desktop: it does not take requests")
        return _Part([])

    def _leave(self, tasks: Iterable[asyncio.Task[_Part]]) -> None:
        for task in tasks:
            if not task.done():
                task.cancel()
                self._left.add(task)
                task.add_done_callback(self._left.discard)
