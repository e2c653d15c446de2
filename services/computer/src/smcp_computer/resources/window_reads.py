"""Reads windows for desktops. What a slow server gives after its desktop was answered is kept for the next one.

A window that is read in time is never taken from memory: not every server announces changes.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from smcp_computer.mcp.errors import ServerError
from smcp_computer.mcp.events import ResourceUpdated, ServerEvent, ServerEvents, ServerGone
from smcp_computer.mcp.resources import Json, Resources
from smcp_computer.mcp.sdk_adapter import REQUEST_S
from smcp_proto.desktop import Window
from smcp_service.lifecycle import Background

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of windows that are kept at most: hundreds of what a model can read."""

Key = tuple[str, str]
"""Server and URI, as the server lists it."""


@dataclass(frozen=True, slots=True)
class WindowRead:
    window: Window
    size: int
    """Characters that are shown."""
    at: float
    """When it was asked for (loop time): it is at least as new."""


Reading = asyncio.Task[WindowRead | ServerError]


class WindowReads:
    """The reads run in `tasks`: the MCP SDK takes some seconds to break off one that a server does not take."""

    def __init__(self, events: ServerEvents, tasks: Background) -> None:
        self._tasks = tasks
        self._late: dict[Key, Reading] = {}
        self._kept: OrderedDict[Key, WindowRead] = OrderedDict()
        """The one that was kept last stands at the end."""
        self._bytes = 0
        events.listen(self._on_event)

    def start(self, resources: Resources, resource: Json, turns: asyncio.Semaphore) -> Reading:
        """Read a window, or wait for a read that goes on from an earlier desktop: its server is slow."""
        key = (resources.server, resource["uri"])
        late = self._late.get(key)
        return late or self._tasks.start(self._read(resources, resource, turns), name=f"desktop:{resources.server}")

    def let_go(self, server: str, uri: str, reading: Reading, *, goes_on: bool) -> None:
        """The desktop is answered. A window that has not come is kept when it comes (`goes_on`), or is not read."""
        key = (server, uri)
        if reading.done() or self._late.get(key) is reading:
            return
        if not goes_on:
            reading.cancel()
            return
        self._late[key] = reading

        def ended(_: object) -> None:
            if self._late.get(key) is reading:
                del self._late[key]

        reading.add_done_callback(ended)

    def last(self, server: str, uri: str) -> WindowRead | None:
        """What was read last, in this life of the server."""
        return self._kept.get((server, uri))

    async def _read(self, resources: Resources, resource: Json, turns: asyncio.Semaphore) -> WindowRead | ServerError:
        loop = asyncio.get_running_loop()
        try:
            async with turns:
                at = loop.time()
                contents = (await resources.read(resource["uri"], timeout=REQUEST_S))["contents"]
        except ServerError as error:
            return error
        given = [content.get("text") for content in contents if isinstance(content, dict)]
        texts = [{"text": text} for text in given if isinstance(text, str)]
        read = WindowRead(Window(resources.server, resource, contents), sum(len(each["text"]) for each in texts), at)
        # without its blobs, which are not shown
        self._keep((resources.server, resource["uri"]), replace(read, window=replace(read.window, contents=texts)))
        return read

    def _keep(self, key: Key, read: WindowRead) -> None:
        if (kept := self._kept.get(key)) is not None and kept.at > read.at:
            return
        self._forget(key)
        self._kept[key] = read
        self._bytes += read.size
        while self._bytes > KEPT_BYTES:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: Key) -> None:
        if (read := self._kept.pop(key, None)) is not None:
            self._bytes -= read.size

    def _on_event(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri):
                self._late.pop((server, uri), None)  # the next desktop asks anew
            case ServerGone(server):
                for key in [key for key in self._kept if key[0] == server]:
                    self._forget(key)
            case _:
                pass
