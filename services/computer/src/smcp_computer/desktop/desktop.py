"""The desktop of this Computer: the windows of all MCP servers that tell of changes, read side by side, organized."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from smcp_computer.desktop.missing import MissingWindows, Tried
from smcp_computer.desktop.reading import Unread, read_windows, windows_of
from smcp_computer.fitting import giving_way
from smcp_computer.mcp.errors import AnswerTooLarge, ServerDied, ServerError, ServerNotRunning
from smcp_computer.mcp.events import ServerEvent, ServerGone, ServerReady
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
    unread: list[Unread] = field(default_factory=list)
    """Windows that are left out."""
    missing: bool = False
    """Whether all of them are left out, since the server does not list."""


class Desktop:
    """`run` must be running.

    Args:
        patience: waits for the servers' lists.
        changed: has the office told that the desktop changed: what one lacked is there now (see `MissingWindows`).
        read_s: how long the MCP servers may take, in seconds; what is not there then is left out.
        max_body: bytes that an answer may have on the bus.
    """

    def __init__(
        self,
        index: ResourceIndex,
        history: History,
        skipped: SkippedServers,
        patience: Patience,
        changed: Callable[[], None],
        *,
        read_s: float,
        max_body: int,
    ) -> None:
        self._index = index
        self._history = history
        self._skipped = skipped
        self._patience = patience
        self._read_s = read_s
        self._max_body = max_body
        self._missing = MissingWindows(self._try_again, changed)
        index.listen(self._missing.relisted)
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
        self._note(dict(zip(reading, parts, strict=True)))
        organized = organize_desktop([window for part in parts for window in part.windows], size, self._history.servers)
        for doubt in organized.warnings:
            self._causes.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        shown = self._fitting(organized, limit, around)
        if only is not None and not shown:
            for part in parts:
                for one in part.unread:
                    if isinstance(one.why, AnswerTooLarge):
                        raise too_large(one.why)
            if organized.desktops:
                raise TooLarge("the window is larger than the answer may be", details={"limit": limit})
        return shown

    def told(self) -> None:
        """The office is told that the desktop changed, for whatever reason."""
        self._missing.told()

    async def run(self) -> None:
        """Find out when there is what desktops lacked, until cancelled."""
        await self._missing.run()

    async def aclose(self) -> None:
        """Wait for what is being broken off."""
        if self._left:
            await asyncio.wait(self._left)

    def on_event(self, event: ServerEvent) -> None:
        """Of a server that was started anew the log may say all again; one that is gone lacks nothing."""
        match event:
            case ServerReady(server):
                self._causes.forget(server)
            case ServerGone(server):
                self._missing.gone(server)
            case _:
                pass

    async def _of_server(self, server: str, only: WindowUri | None, deadline: float, limit: int) -> _Part:
        try:
            listing = await self._list(server, deadline)
            resources = self._index.connection(server)
        except ServerError as error:
            self._causes.warn(server, f"its windows are left out of the desktop: it {error.what}")
            return _Part([], missing=_may_come(error))
        windows, unread = await read_windows(
            resources, windows_of(listing.values(), only), deadline=deadline, max_bytes=limit
        )
        for one in unread:
            self._causes.warn(server, f"{one.uri[:SHOWN]} is left out of the desktop: it {one.why.what}")
        return _Part(windows, unread)

    async def _try_again(self, server: str, uris: Collection[str] | None) -> Tried:
        """As for a desktop, without its warnings: they have been said. Raises ServerError where it does not list."""
        deadline = asyncio.get_running_loop().time() + self._read_s
        listing = await self._list(server, deadline)
        wanted = [one for one in windows_of(listing.values(), None) if uris is None or one["uri"] in uris]
        resources = self._index.connection(server)
        windows, unread = await read_windows(resources, wanted, deadline=deadline, max_bytes=self._max_body)
        there = (window.resource["uri"] for window in windows if organize_desktop([window], None, ()).desktops)
        return Tried(frozenset(there), frozenset(one.uri for one in unread if _may_come(one.why)))

    def _note(self, parts: Mapping[str, _Part]) -> None:
        """Keep what is missing, and may be there later without anybody saying so."""
        for server, part in parts.items():
            self._missing.shown(server, [window.resource["uri"] for window in part.windows])
            self._missing.lacked(
                server, None if part.missing else [one.uri for one in part.unread if _may_come(one.why)]
            )

    def _fitting(self, organized: OrganizedDesktop, limit: int, around: int) -> list[bytes]:
        shown = [orjson.dumps(text) for text in organized.desktops]
        sizes = [len(text) for text in shown]
        gone = giving_way(sizes, [size + 1 for size in sizes], limit - around)
        for number in sorted(gone):
            server, uri = organized.sources[number]
            why = f"together the windows are larger than the answer may be, {limit} bytes"
            self._causes.warn(server, f"{uri[:SHOWN]} is left out of the desktop: {why}")
        return [text for number, text in enumerate(shown) if number not in gone]

    async def _list(self, server: str, deadline: float) -> Listing:
        async def ask(timeout: float) -> Listing:
            return await self._index.list(server, timeout=timeout)

        rest = deadline - asyncio.get_running_loop().time()
        return await self._patience.ask("resources", server, ask, max(rest, 0.0))

    def _result(self, server: str, task: asyncio.Task[_Part]) -> _Part:
        if task.done():
            return task.result()
        self._causes.warn(server, "its windows are left out of the desktop: it does not take requests")
        return _Part([], missing=True)

    def _leave(self, tasks: Iterable[asyncio.Task[_Part]]) -> None:
        for task in tasks:
            if not task.done():
                task.cancel()
                self._left.add(task)
                task.add_done_callback(self._left.discard)


def _may_come(why: ServerError) -> bool:
    """Whether what failed is to be tried again. A server that ended is told of when it comes back; what is too large,
    when it changes.
    """
    return not isinstance(why, (ServerDied, ServerNotRunning, AnswerTooLarge))
