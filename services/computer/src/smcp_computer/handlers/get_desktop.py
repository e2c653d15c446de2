"""`client:get_desktop`: the windows of all MCP servers that announce changes, read side by side and organized.

It is answered in time whatever servers do: what is not read by then is shown as it was read last, with its age.
"""

import asyncio
from collections.abc import Iterator, Sequence
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
from smcp_proto.desktop import Window, organize_desktop
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
        self._kept: dict[Key, WindowRead] = {}
        """What was read last of each window, the one that was kept last at the end. One that is read in time is never
        taken from here: not every server announces changes."""
        self.events.listen(self._on_event)

    async def __call__(self, request: GetDeskTopReq, call: Call) -> Answer:
        """A GetDeskTopRet. A server that fails or is slow costs its own windows, and one warning in the log for each
        cause. So does a window that is larger than a message may be.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        only = None if request.window is None else window_uri(request.window)
        size = request.desktop_size
        parts: list[_Part] = []
        if (request.window is None or only is not None) and (size is None or size > 0):
            self.index.count("get_desktop")
            hidden = self.access.hidden(call.caller)
            servers = [server for server in self.index.servers(subscribable=True) if server not in hidden]
            parts = [_Part(each, self._listed(each, only)) for each in servers]
            await self._fill(parts, only, Budget(call, most=self.read_s).left)
        size_kept = sum(read.memory for read in self._kept.values())
        while size_kept > KEPT_BYTES:
            size_kept -= self._kept.pop(next(iter(self._kept))).memory
        windows, ages, missing = list[Window](), dict[Key, float](), 0
        for server, resource, read in self._found(parts):
            if read is None:
                missing += 1
                continue
            windows.append(Window(server, resource, read.contents))
            if read.at < began:
                ages[server, without_query(resource["uri"])] = round(loop.time() - read.at, 1)
        organized = organize_desktop(windows, size, self.history.servers)
        for doubt in organized.warnings:
            self.events.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        reply: dict[str, Any] = {"desktops": organized.desktops, "req_id": request.req_id}
        if missing:
            reply["a2c_missing"] = missing
        if any(shown := [ages.get(source, 0.0) for source in organized.sources]):
            reply["a2c_ages"] = shown
        return Answer(orjson.dumps(reply))

    async def _fill(self, parts: Sequence[_Part], only: WindowUri | None, within: float) -> None:
        asking = {self.tasks.start(self._ask(part, only, within), name="desktop"): part for part in parts}
        try:
            slow = (await asyncio.wait(asking, timeout=within))[1] if asking else ()
        finally:
            for task in asking:
                task.cancel()
        for task in slow:
            why = "did not answer in time: its windows are from earlier reads, or left out"
            self.events.warn(asking[task].server, why)
        self.index.left_out["get_desktop"] += sum(not part.is_listed for part in parts)

    async def _ask(self, part: _Part, only: WindowUri | None, within: float) -> None:
        try:
            await self.index.list(part.server, within)
            resources = self.index.connection(part.server)
        except ServerError as error:
            self.events.warn(part.server, f"its windows are left out of the desktop: it {error.what}")
        else:
            part.windows, part.is_listed, turns = self._listed(part.server, only), True, asyncio.Semaphore(AT_ONCE)
            for resource in part.windows:
                part.readings[resource["uri"]] = self._reading(resources, resource["uri"], turns)
            if part.readings:
                await asyncio.wait(part.readings.values())

    def _found(self, parts: Sequence[_Part]) -> Iterator[tuple[str, Json, WindowRead | None]]:
        """The windows by server, in the order of its list, each with what is known of it."""
        for part in parts:
            for resource in part.windows:
                uri = resource["uri"]
                reading = part.readings.get(uri)
                is_read = reading is not None and reading.done() and not reading.cancelled()
                read = reading.result() if reading and is_read else self._kept.get((part.server, uri))
                yield part.server, resource, read

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
        if (reading := self._running.get(key)) is None:
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
