"""`client:get_desktop`: the windows of all MCP servers that announce changes, read side by side and organized.

It is answered in time whatever servers do: what is not read by then is shown as it was read last, with its age.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final

import orjson

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.access import Access
from smcp_computer.mcp.errors import AnswerTooLarge, ServerError, ServerTimedOut
from smcp_computer.mcp.events import ResourceUpdated, ServerEvent, ServerEvents, ServerGone
from smcp_computer.mcp.requests import REQUEST_S
from smcp_computer.mcp.resources import AT_ONCE, Json, Resources
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.routing import Budget
from smcp_computer.tools import History
from smcp_proto.desktop import UNREAD, Window, is_certain, organize_desktop, read_metadata
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.tools import GetDeskTopReq
from smcp_proto.uris import WINDOW, WindowUri, scheme_of, window_uri, without_query
from smcp_service.lifecycle import Background

MOST_WINDOWS: Final = 2000
"""Of one server; more than models can read. A server may list 50,000, and starting to read so many takes a second."""
KEPT_BYTES: Final = 16 * 1024 * 1024
"""At most this many bytes of windows are kept: hundreds of times what a model can read."""
_WINDOW_OVERHEAD: Final = 1024
"""Memory of a kept window in bytes, without its URI and text."""
_LATE: Final = "did not answer in time: its windows are from an earlier read, or left out"
_NOT_LISTED: Final[Json] = {"uri": "window://not-listed-yet"}
"""Stands for the windows of a server whose list is not known."""

Key = tuple[str, str]
"""Server and URI, as the server lists it."""


@dataclass(frozen=True, slots=True)
class WindowRead:
    contents: Sequence[Json]
    """As in `Window`."""
    size: int
    """Bytes of its texts as JSON."""
    at: float
    """When the read was requested (loop time): the contents are at least as new."""


Reading = asyncio.Task[WindowRead | ServerError]


@dataclass(slots=True, eq=False)
class _Part:
    """What one server gives for one desktop."""

    server: str
    error: ServerError | None = None
    """Why it gives no list."""
    readings: list[tuple[Json, Reading]] | None = None
    """In the order of its list; None: it has not listed yet."""

    @property
    def is_done(self) -> bool:
        if self.readings is None:
            return self.error is not None
        return all(reading.done() for _, reading in self.readings)


@dataclass(slots=True)
class _Found:
    windows: list[Window] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """For the log: server, and cause."""
    ages: dict[tuple[str, str], float] = field(default_factory=dict)
    """Seconds, by server and URI: of those that were read for an earlier desktop."""
    missing: int = 0
    """Windows, or lists of them, which a later request may get."""
    too_large: int = 0


class _WindowReads:
    """Reads windows. What a slow server gives after its desktop was answered is kept for the next one. A window that is
    read in time is never taken from memory: not every server announces changes.

    The reads run in `tasks`: the MCP SDK takes some seconds to break off one that a server does not take.
    """

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

    def finish_read(self, server: str, uri: str, reading: Reading, *, goes_on: bool) -> None:
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
        texts = [text for text in given if isinstance(text, str)]
        read = WindowRead(contents, len(orjson.dumps(texts)), at)
        # kept as one text without the blobs, which are not shown: a server may send thousands of empty texts
        shown = [{"text": "\n\n".join(texts) if any(texts) else ""}] if texts else []
        self._keep((resources.server, resource["uri"]), replace(read, contents=shown))
        return read

    def _keep(self, key: Key, read: WindowRead) -> None:
        if (kept := self._kept.get(key)) is not None and kept.at > read.at:
            return
        self._forget(key)
        self._kept[key] = read
        self._bytes += _memory_of(key, read)
        while self._bytes > KEPT_BYTES:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: Key) -> None:
        if (read := self._kept.pop(key, None)) is not None:
            self._bytes -= _memory_of(key, read)

    def _on_event(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri):
                self._late.pop((server, uri), None)  # the next desktop asks anew
            case ServerGone(server):
                for key in [key for key in self._kept if key[0] == server]:
                    self._forget(key)
            case _:
                pass


@dataclass(eq=False)
class Desktop:
    """Windows that take longer than `read_s` are shown as they were read before, or left out."""

    index: ResourceIndex
    history: History
    access: Access
    events: ServerEvents
    tasks: Background
    _: KW_ONLY
    read_s: float
    max_body: int

    def __post_init__(self) -> None:
        self._reads = _WindowReads(self.events, self.tasks)

    async def __call__(self, request: GetDeskTopReq, call: Call) -> RawJson:
        """A GetDeskTopRet.

        With `desktop_size` it is given as soon as it is certain: no window that is not read yet could be on it. A
        server that fails or is slow costs its own windows, and one warning in the log for each cause. So does a window
        that is larger than a message may be.

        Raises:
            TooLarge: that is the window that was asked for (`window`).
        """
        only = None if request.window is None else window_uri(request.window)
        history, size = self.history.servers, request.desktop_size
        found = _Found()
        if (request.window is None or only is not None) and (size is None or size > 0):
            within = Budget(call, most=self.read_s).left
            found = await self._find(only, size, history, self.access.hidden(call.caller), within)
        organized = organize_desktop(found.windows, size, history)
        for doubt in organized.warnings:
            self.events.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        reply: dict[str, Any] = {"desktops": organized.desktops, "req_id": request.req_id}
        if found.missing:
            reply["a2c_missing"] = found.missing
        ages = [round(found.ages.get(source, 0.0), 1) for source in organized.sources]
        if any(ages):
            reply["a2c_ages"] = ages
        if only is not None and found.too_large:
            raise TooLarge("the window is larger than the answer may be", details={"limit": self.max_body})
        return RawJson(orjson.dumps(reply))

    async def _find(
        self,
        only: WindowUri | None,
        size: int | None,
        history: Sequence[str],
        hidden: frozenset[str],
        within: float,
    ) -> _Found:
        loop = asyncio.get_running_loop()
        began, came, is_done = loop.time(), asyncio.Event(), False
        self.index.count_skipped("get_desktop")
        parts = [_Part(server) for server in self.index.servers(subscribable=True) if server not in hidden]
        listing = [
            self.tasks.start(self._list(part, only, within, came), name=f"desktop:{part.server}") for part in parts
        ]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + within):
                    while True:
                        looked = loop.time()
                        if is_done := self._is_done(parts, only, size, history):
                            break
                        pause = loop.time() - looked  # to look takes at most half of the time: windows may be many
                        came.clear()
                        await came.wait()
                        await asyncio.sleep(pause)
            found = self._found(parts, only, began)
            for server, why in found.problems:
                self.events.warn(server, why)
            self.index.left_out["get_desktop"] += sum(part.readings is None for part in parts)
            return found
        finally:
            for task in listing:
                task.cancel()
            for part in parts:
                for resource, reading in part.readings or ():
                    self._reads.finish_read(part.server, resource["uri"], reading, goes_on=not is_done)

    async def _list(self, part: _Part, only: WindowUri | None, within: float, came: asyncio.Event) -> None:
        try:
            await self.index.list(part.server, within)
            listing = self._windows(part.server, only)
            resources = self.index.connection(part.server)
        except ServerError as error:
            part.error = error
        else:
            turns, started = asyncio.Semaphore(AT_ONCE), dict[str, Reading]()
            for resource in sorted(listing, key=_rank):  # those first that a small desktop needs
                started[resource["uri"]] = reading = self._reads.start(resources, resource, turns)
                reading.add_done_callback(lambda _: came.set())
            part.readings = [(resource, started[resource["uri"]]) for resource in listing]
        came.set()

    def _is_done(
        self, parts: Sequence[_Part], only: WindowUri | None, size: int | None, history: Sequence[str]
    ) -> bool:
        if all(part.is_done for part in parts):
            return True
        return size is not None and is_certain(self._found(parts, only).windows, size, history)

    def _found(self, parts: Sequence[_Part], only: WindowUri | None, began: float | None = None) -> _Found:
        """What there is now. `began`: the desktop that was asked for then (loop time) is answered with it; None: it is
        not, and windows that are waited for are `UNREAD`."""
        found, now = _Found(), asyncio.get_running_loop().time()
        for part in parts:
            for resource, outcome in self._outcomes(part, only, answered=began is not None):
                server, uri = part.server, resource["uri"]
                if outcome is None and began is None:
                    found.windows.append(Window(server, resource, UNREAD))
                    continue
                read = outcome
                if outcome is None or isinstance(outcome, ServerTimedOut):
                    found.problems.append((server, _LATE))
                    read = self._reads.last(server, uri)
                match read:
                    case WindowRead(contents, _, at):
                        found.windows.append(Window(server, resource, contents))
                        if began is not None and at < began:
                            found.ages[server, without_query(uri)] = now - at
                    case AnswerTooLarge():
                        found.too_large += 1
                        found.problems.append(
                            (server, f"{self.events.shown(uri)} is left out of the desktop: it is too large")
                        )
                    case ServerError(what=what):
                        found.missing += 1
                        which = "its windows are" if resource is _NOT_LISTED else f"{self.events.shown(uri)} is"
                        found.problems.append((server, f"{which} left out of the desktop: it {what}"))
                    case None:
                        found.missing += 1
        return found

    def _outcomes(
        self, part: _Part, only: WindowUri | None, *, answered: bool
    ) -> Iterable[tuple[Json, WindowRead | ServerError | None]]:
        """The windows of a server, in the order of its list. None: it is not read yet, or the list is not there yet."""
        if part.readings is not None:
            return [
                (resource, None if reading.cancelled() or not reading.done() else reading.result())
                for resource, reading in part.readings
            ]
        is_late = answered if part.error is None else isinstance(part.error, ServerTimedOut)
        if is_late and self.index.is_listed(part.server):  # its last list tells what may be there
            return [(resource, part.error) for resource in self._windows(part.server, only)]
        return [(_NOT_LISTED, part.error)]

    def _windows(self, server: str, only: WindowUri | None) -> list[Json]:
        """The windows of the server's last list; `only`: this one, by its first URI there."""
        listing = self.index.known(server)
        if only is not None:
            uri = self.index.names(server).windows.get(only)
            return [] if uri is None else [listing[uri]]
        windows = [each for uri, each in listing.items() if scheme_of(uri) == WINDOW]
        if len(windows) > MOST_WINDOWS:
            self.events.warn(server, f"lists {len(windows)} windows; a desktop has the first {MOST_WINDOWS}")
        return windows[:MOST_WINDOWS]


def _memory_of(key: Key, read: WindowRead) -> int:
    """The memory that a kept window takes, roughly, in bytes."""
    return _WINDOW_OVERHEAD + len(key[1]) + read.size


def _rank(resource: Json) -> tuple[bool, float]:
    priority, fullscreen = read_metadata(resource, lambda _: None)
    return not fullscreen, -priority
