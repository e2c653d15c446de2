"""`client:get_desktop`: the windows of all MCP servers that announce changes, read side by side and organized.

It is answered in time whatever servers do: what is not read by then is shown as it was read last, with its age.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import orjson

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.access import Access
from smcp_computer.mcp.errors import AnswerTooLarge, ServerError, ServerTimedOut
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.resources import Json
from smcp_computer.reply_limits import giving_way, reply_limit
from smcp_computer.resources.index import Listing, ResourceIndex
from smcp_computer.resources.routing import window_uri
from smcp_computer.resources.window_reads import Reading, WindowRead, WindowReads
from smcp_computer.tools import History
from smcp_proto.desktop import UNREAD, OrganizedDesktop, Window, is_certain, organize_desktop, read_metadata
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.tools import GetDeskTopReq
from smcp_proto.uris import WINDOW, WindowUri, scheme_of, without_query
from smcp_service.lifecycle import Background

ANSWER_S: Final = 1.0
"""Reserved for the answer, out of the time that the caller waits."""
AT_ONCE: Final = 16
"""Windows that one server is asked for at a time."""
_HEAD: Final = b'{"desktops":['
_LATE: Final = "did not answer in time: its windows are from an earlier read, or left out"
_NOT_LISTED: Final[Json] = {"uri": "window://not-listed-yet"}
"""Stands for the windows of a server whose list is not known."""


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


class Desktop:
    """Windows that take longer than `read_s` are shown as they were read before, or left out."""

    def __init__(
        self,
        index: ResourceIndex,
        history: History,
        access: Access,
        events: ServerEvents,
        tasks: Background,
        *,
        read_s: float,
        max_body: int,
    ) -> None:
        self._index = index
        self._history = history
        self._access = access
        self._tasks = tasks
        self._reads = WindowReads(events, tasks)
        self._read_s = read_s
        self._max_body = max_body
        self._events = events

    async def __call__(self, request: GetDeskTopReq, call: Call) -> RawJson:
        """A GetDeskTopRet.

        With `desktop_size` it is given as soon as it is certain: no window that is not read yet could be on it. A
        server that fails or is slow costs its own windows, and one warning in the log for each cause. So does a window
        that is too large; of windows that are too large together the largest are left out, as few as can be.

        Raises:
            TooLarge: the window that was asked for (`window`) is larger than the answer may be.
        """
        limit = reply_limit(call, self._max_body)
        only = None if request.window is None else window_uri(request.window)
        history, size = self._history.servers, request.desktop_size
        found = _Found()
        if (request.window is None or only is not None) and (size is None or size > 0):
            left = call.deadline - asyncio.get_running_loop().time() - ANSWER_S
            hidden, within = self._access.hidden(call.caller), max(min(self._read_s, left), 0.0)
            found = await self._find(only, size, history, hidden, within, limit)
        organized = organize_desktop(found.windows, size, history)
        for doubt in organized.warnings:
            self._events.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        tail = b'],"req_id":%b}' % orjson.dumps(request.req_id)
        if found.missing:
            tail = b'],"a2c_missing":%d,%b' % (found.missing, tail[2:])
        ages = [round(found.ages.get(source, 0.0), 1) for source in organized.sources]
        aged = b'],"a2c_ages":%b,%b' % (orjson.dumps(ages), tail[2:]) if any(ages) else tail
        shown = self._fitting(organized, limit, limit - len(_HEAD) - len(aged))
        if any(ages):
            tail = b'],"a2c_ages":%b,%b' % (orjson.dumps([ages[number] for number in shown]), tail[2:])
        if only is not None and not shown and (found.too_large or organized.desktops):
            raise TooLarge("the window is larger than the answer may be", details={"limit": limit})
        return RawJson(b"".join((_HEAD, b",".join(shown.values()), tail)))

    async def _find(
        self,
        only: WindowUri | None,
        size: int | None,
        history: Sequence[str],
        hidden: frozenset[str],
        within: float,
        limit: int,
    ) -> _Found:
        loop = asyncio.get_running_loop()
        began, came, is_done = loop.time(), asyncio.Event(), False
        self._index.count_skipped("get_desktop")
        parts = [_Part(server) for server in self._index.servers(subscribable=True) if server not in hidden]
        listing = [
            self._tasks.start(self._list(part, only, within, came), name=f"desktop:{part.server}") for part in parts
        ]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + within):
                    while True:
                        looked = loop.time()
                        if is_done := self._is_done(parts, only, size, history, limit):
                            break
                        pause = loop.time() - looked  # to look takes at most half of the time: windows may be many
                        came.clear()
                        await came.wait()
                        await asyncio.sleep(pause)
            found = self._found(parts, only, limit, began)
            for server, why in found.problems:
                self._events.warn(server, why)
            self._index.left_out["get_desktop"] += sum(part.readings is None for part in parts)
            return found
        finally:
            for task in listing:
                task.cancel()
            for part in parts:
                for resource, reading in part.readings or ():
                    self._reads.let_go(part.server, resource["uri"], reading, goes_on=not is_done)

    async def _list(self, part: _Part, only: WindowUri | None, within: float, came: asyncio.Event) -> None:
        try:
            listing = _windows(await self._index.list(part.server, within), only)
            resources = self._index.connection(part.server)
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
        self, parts: Sequence[_Part], only: WindowUri | None, size: int | None, history: Sequence[str], limit: int
    ) -> bool:
        if all(part.is_done for part in parts):
            return True
        return size is not None and is_certain(self._found(parts, only, limit).windows, size, history)

    def _found(self, parts: Sequence[_Part], only: WindowUri | None, limit: int, began: float | None = None) -> _Found:
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
                    case WindowRead(window, size, at) if size <= limit:
                        found.windows.append(window)
                        if began is not None and at < began:
                            found.ages[server, without_query(uri)] = now - at
                    case WindowRead() | AnswerTooLarge():
                        found.too_large += 1
                        found.problems.append(
                            (server, f"{self._events.shown(uri)} is left out of the desktop: it is too large")
                        )
                    case ServerError(what=what):
                        found.missing += 1
                        which = "its windows are" if resource is _NOT_LISTED else f"{self._events.shown(uri)} is"
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
        if is_late and self._index.is_listed(part.server):  # its last list tells what may be there
            return [(resource, part.error) for resource in _windows(self._index.known(part.server), only)]
        return [(_NOT_LISTED, part.error)]

    def _fitting(self, organized: OrganizedDesktop, limit: int, room: int) -> dict[int, bytes]:
        """The windows for which there is room, as JSON, by their numbers."""
        shown = [orjson.dumps(text) for text in organized.desktops]
        sizes = [len(text) for text in shown]
        gone = giving_way(sizes, [size + 1 for size in sizes], room)
        for number in sorted(gone):
            server, uri = organized.sources[number]
            why = "together the windows are larger than the answer may be"
            self._events.warn(server, f"{self._events.shown(uri)} is left out of the desktop: {why}")
        return {number: text for number, text in enumerate(shown) if number not in gone}


def _windows(listing: Listing, only: WindowUri | None) -> list[Json]:
    listed = [each for uri, each in listing.items() if scheme_of(uri) == WINDOW]
    return [each for each in listed if only is None or window_uri(each["uri"]) == only]


def _rank(resource: Json) -> tuple[bool, float]:
    priority, fullscreen = read_metadata(resource, lambda _: None)
    return not fullscreen, -priority
