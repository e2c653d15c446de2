"""`client:get_desktop`: the windows of all MCP servers that announce changes, read side by side and organized.

It is answered in time whatever servers do: what is not read by then is shown as it was read last, with its age.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final

import orjson

from smcp_bus.dispatch import Answer, Call
from smcp_computer.access import Access
from smcp_computer.mcp.errors import ServerError, ServerTimedOut
from smcp_computer.mcp.events import ResourceUpdated, ServerEvent, ServerEvents, ServerGone
from smcp_computer.mcp.resources import AT_ONCE, REQUEST_S, Json, Resources
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.routing import Budget
from smcp_computer.tools import History
from smcp_proto.desktop import UNREAD, Window, is_certain, organize_desktop, read_metadata
from smcp_proto.schemas.tools import GetDeskTopReq
from smcp_proto.uris import WindowUri, window_uri, without_query
from smcp_service.lifecycle import Background

MOST_WINDOWS: Final = 2000
"""Of one server; more than models can read. A server may list 50,000, and starting to read so many takes a second."""
KEPT_BYTES: Final = 16 * 1024 * 1024
"""At most this many bytes of windows are kept: hundreds of times what a model can read."""
_NOT_LISTED: Final[Json] = {"uri": "window://not-listed-yet"}
"""Stands for the windows of a server whose list is not known."""

Key = tuple[str, str]
"""Server and URI, as the server lists it."""


@dataclass(frozen=True, slots=True)
class WindowRead:
    contents: Sequence[Json]
    """As in `Window`."""
    memory: int
    """Bytes that it takes, roughly."""
    at: float
    """When the read was requested (loop time): the contents are at least as new."""


Reading = asyncio.Task[WindowRead | None]


@dataclass(slots=True, eq=False)
class _Part:
    """What one server gives for one desktop."""

    server: str
    windows: list[Json]
    """In list order: of the previous list until the current one is here."""
    readings: dict[str, Reading] = field(default_factory=dict)
    """By URI."""
    is_listed: bool = False
    is_done: bool = False


@dataclass(eq=False)
class Desktop:
    """Windows that take longer than `read_s` are shown as they were read before, or left out.

    The reads run in `tasks`: the MCP SDK takes some seconds to break off one that a server does not take.
    """

    index: ResourceIndex
    history: History
    access: Access
    events: ServerEvents
    tasks: Background
    _: KW_ONLY
    read_s: float

    def __post_init__(self) -> None:
        self._running: dict[Key, Reading] = {}
        self._parts: set[_Part] = set()
        """Of the desktops that are being read; they share reads."""
        self._kept: dict[Key, WindowRead] = {}
        """What was read last of each window, the one that was kept last at the end. One that is read in time is never
        taken from here: not every server announces changes."""
        self.events.listen(self._on_event)

    async def __call__(self, request: GetDeskTopReq, call: Call) -> Answer:
        """A GetDeskTopRet.

        With `desktop_size` it is given as soon as it is certain: no window that is not read yet could be on it. A
        server that fails or is slow costs its own windows, and one warning in the log for each cause. So does a window
        that is larger than a message may be.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        only = None if request.window is None else window_uri(request.window)
        size, history = request.desktop_size, self.history.servers
        parts: list[_Part] = []
        if (request.window is None or only is not None) and (size is None or size > 0):
            self.index.count("get_desktop")
            hidden = self.access.hidden(call.caller)
            servers = [server for server in self.index.servers(subscribable=True) if server not in hidden]
            parts = [_Part(each, self._listed(each, only)) for each in servers]
            await self._fill(parts, only, size, history, Budget(call, most=self.read_s).left)
        size_kept = sum(read.memory for read in self._kept.values())
        while size_kept > KEPT_BYTES:
            size_kept -= self._kept.pop(next(iter(self._kept))).memory
        windows, ages, missing = list[Window](), dict[Key, float](), 0
        for server, resource, read, _ in self._found(parts):
            if read is None:
                missing += 1
                continue
            windows.append(Window(server, resource, read.contents))
            if read.at < began:
                ages[server, without_query(resource["uri"])] = round(loop.time() - read.at, 1)
        organized = organize_desktop(windows, size, history)
        for doubt in organized.warnings:
            self.events.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        reply: dict[str, Any] = {"desktops": organized.desktops, "req_id": request.req_id}
        if missing:
            reply["a2c_missing"] = missing
        if any(shown := [ages.get(source, 0.0) for source in organized.sources]):
            reply["a2c_ages"] = shown
        return Answer(orjson.dumps(reply))

    async def _fill(
        self, parts: Sequence[_Part], only: WindowUri | None, size: int | None, history: Sequence[str], within: float
    ) -> None:
        came, loop = asyncio.Event(), asyncio.get_running_loop()
        self._parts.update(parts)
        tasks = [self.tasks.start(self._ask(part, only, within, came), name=f"desktop:{part.server}") for part in parts]
        is_enough = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    while not (is_enough or all(part.is_done for part in parts)):
                        await came.wait()
                        came.clear()  # before the check, which a new window repeats
                        if size is not None:
                            looked = loop.time()
                            is_enough = self._is_certain(parts, size, history)
                            await asyncio.sleep(loop.time() - looked)  # windows may be many
        finally:
            self._parts.difference_update(parts)
            for task in tasks:
                task.cancel()
        awaited = {reading for part in self._parts for reading in part.readings.values()}
        for part in parts:
            if is_enough:
                for reading in part.readings.values():
                    if reading not in awaited:
                        reading.cancel()
            elif not part.is_done:
                self.events.warn(part.server, "did not answer in time: its windows are from earlier reads, or left out")
            self.index.left_out["get_desktop"] += not part.is_listed

    async def _ask(self, part: _Part, only: WindowUri | None, within: float, came: asyncio.Event) -> None:
        try:
            await self.index.list(part.server, within)
            resources = self.index.connection(part.server)
        except ServerError as error:
            self.events.warn(part.server, f"its windows are left out of the desktop: it {error.what}")
        else:
            part.windows, part.is_listed, turns = self._listed(part.server, only), True, asyncio.Semaphore(AT_ONCE)
            for resource in sorted(part.windows, key=_rank):  # those first that a small desktop needs
                part.readings[resource["uri"]] = reading = self._reading(resources, resource["uri"], turns)
                reading.add_done_callback(lambda _: came.set())
            if part.readings:
                await asyncio.wait(part.readings.values())
        part.is_done = True
        came.set()

    def _is_certain(self, parts: Sequence[_Part], size: int, history: Sequence[str]) -> bool:
        windows = [
            Window(server, resource, UNREAD if is_open or read is None else read.contents)
            for server, resource, read, is_open in self._found(parts)
            if is_open or read is not None
        ]
        return is_certain(windows, size, history)

    def _found(self, parts: Sequence[_Part]) -> Iterator[tuple[str, Json, WindowRead | None, bool]]:
        """The windows by server, in the order of its list, each with what is known of it, and whether that may still
        change."""
        for part in parts:
            for resource in part.windows:
                uri = resource["uri"]
                reading = part.readings.get(uri)
                is_read = reading is not None and reading.done() and not reading.cancelled()
                read = reading.result() if reading and is_read else self._kept.get((part.server, uri))
                yield part.server, resource, read, not (reading.done() if reading else part.is_done)

    def _listed(self, server: str, only: WindowUri | None) -> list[Json]:
        """The windows of the server's last list; `only`: this one, by its first URI there."""
        if not self.index.is_listed(server):
            return [_NOT_LISTED]
        listing = self.index.known(server)
        if only is not None:
            uri = listing.windows.get(only)
            return [] if uri is None else [listing[uri]]
        windows = [listing[uri] for uri in listing.windows.values()]
        if len(windows) > MOST_WINDOWS:
            self.events.warn(server, f"lists {len(windows)} windows; a desktop has the first {MOST_WINDOWS}")
        return windows[:MOST_WINDOWS]

    def _reading(self, resources: Resources, uri: str, turns: asyncio.Semaphore) -> Reading:
        """Read a window, or wait for a read that goes on from an earlier desktop. None: it cannot be read now."""
        key = (resources.server, uri)
        if (reading := self._running.get(key)) is None or reading.cancelling():
            reading = self.tasks.start(self._read(resources, uri, turns), name=f"desktop:{resources.server}")
            self._running[key] = reading
            reading.add_done_callback(lambda done: self._running.get(key) is done and self._running.pop(key))
        return reading

    async def _read(self, resources: Resources, uri: str, turns: asyncio.Semaphore) -> WindowRead | None:
        key, at = (resources.server, uri), 0.0
        try:
            async with turns:
                at = asyncio.get_running_loop().time()
                contents = (await resources.read(uri, timeout=REQUEST_S))["contents"]
        except ServerTimedOut:
            return self._kept.get(key)
        except ServerError as error:
            self._kept.pop(key, None)
            self.events.warn(key[0], f"{self.events.shown(uri)} is left out of the desktop: it {error.what}")
            return None
        given = [content.get("text") for content in contents if isinstance(content, dict)]
        texts = [text for text in given if isinstance(text, str)]
        read = WindowRead(contents, len(uri) + len(orjson.dumps(texts)), at)
        # kept as one text without the blobs, which are not shown: a server may send thousands of empty texts
        self._kept.pop(key, None)
        self._kept[key] = replace(read, contents=[{"text": "\n\n".join(texts) if any(texts) else ""}] if texts else [])
        return read

    def _on_event(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri):
                self._running.pop((server, uri), None)  # the next desktop asks anew
            case ServerGone(server):
                self._kept = {key: read for key, read in self._kept.items() if key[0] != server}


def _rank(resource: Json) -> tuple[bool, float]:
    priority, fullscreen = read_metadata(resource, lambda _: None)
    return not fullscreen, -priority
