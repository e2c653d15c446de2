"""The desktop of this Computer: the windows of all MCP servers that tell of changes, read side by side, organized."""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from smcp_computer.desktop.reading import read_windows, window_uri, windows_of
from smcp_computer.mcp.errors import ServerError
from smcp_computer.mcp.events import ServerEvent, ServerReady
from smcp_computer.mcp.resources import SHOWN
from smcp_computer.resources.causes import Causes
from smcp_computer.resources.history import History
from smcp_computer.resources.index import Listing, ResourceIndex
from smcp_computer.resources.patience import Patience
from smcp_computer.resources.skipped import SkippedServers
from smcp_proto.desktop import Window, organize_desktop
from smcp_proto.uris import WindowUri

_log = logging.getLogger("smcp_computer.desktop")

OPERATION: Final = "get_desktop"
GRACE_S: Final = 0.5
"""How much later than its deadline a server's part may come: what is behind it has timed out by then."""


class Desktop:
    """Args:
    patience: waits for the servers' lists.
    read_s: how long the MCP servers may take, in seconds; what is not there then is left out.
    max_bytes: of one window.
    """

    def __init__(
        self,
        index: ResourceIndex,
        history: History,
        skipped: SkippedServers,
        patience: Patience,
        *,
        read_s: float,
        max_bytes: int,
    ) -> None:
        self._index = index
        self._history = history
        self._skipped = skipped
        self._patience = patience
        self._read_s = read_s
        self._max_bytes = max_bytes
        self._causes = Causes(_log)
        self._left: set[asyncio.Task[list[Window]]] = set()
        """Broken off: to a server that reads nothing, even that takes the SDK some seconds."""

    async def show(self, size: int | None, window: str | None, *, left: float) -> list[str]:
        """The windows as text, in the order of desktop.txt.

        A server that fails or is slow costs its own windows, and a warning in the log: one for each cause.

        Args:
            size: at most so many; 0 or less: none; None: all.
            window: only the windows with this URI; None: all. None has it: an empty list.
            left: seconds that the caller waits.
        """
        only = None if window is None else window_uri(window)
        if (window is not None and only is None) or (size is not None and size <= 0):
            return []
        self._skipped.count(OPERATION, self._index.without_resources())
        within = max(min(self._read_s, left), 0.0)
        deadline = asyncio.get_running_loop().time() + within
        reading = {
            server: asyncio.create_task(self._of_server(server, only, deadline), name=f"desktop:{server}")
            for server in self._index.servers(subscribable=True)
        }
        try:
            if reading:
                await asyncio.wait(reading.values(), timeout=within + GRACE_S)
            windows = [window for server, task in reading.items() for window in self._result(server, task)]
        finally:
            self._leave(reading.values())
        organized = organize_desktop(windows, size, self._history.servers)
        for doubt in organized.warnings:
            self._causes.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        return organized.desktops

    async def aclose(self) -> None:
        """Wait for what is being broken off."""
        if self._left:
            await asyncio.wait(self._left)

    def on_event(self, event: ServerEvent) -> None:
        if isinstance(event, ServerReady):
            self._causes.forget(event.server)

    async def _of_server(self, server: str, only: WindowUri | None, deadline: float) -> list[Window]:
        rest = deadline - asyncio.get_running_loop().time()
        try:
            listing = await self._patience.ask("resources", server, partial(self._list, server), max(rest, 0.0))
            resources = self._index.connection(server)
        except ServerError as error:
            self._causes.warn(server, f"its windows are left out of the desktop: it {error.what}")
            return []
        windows, unread = await read_windows(
            resources, windows_of(listing.values(), only), deadline=deadline, max_bytes=self._max_bytes
        )
        for one in unread:
            self._causes.warn(server, f"{one.uri[:SHOWN]} is left out of the desktop: it {one.why.what}")
        return windows

    async def _list(self, server: str, timeout: float) -> Listing:
        return await self._index.list(server, timeout=timeout)

    def _result(self, server: str, task: asyncio.Task[list[Window]]) -> list[Window]:
        if task.done():
            return task.result()
        self._causes.warn(server, "its windows are left out of the desktop: it does not take requests")
        return []

    def _leave(self, tasks: Iterable[asyncio.Task[list[Window]]]) -> None:
        for task in tasks:
            if not task.done():
                task.cancel()
                self._left.add(task)
                task.add_done_callback(self._left.discard)
