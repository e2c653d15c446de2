"""`client:get_desktop`: the windows of all MCP servers that announce changes, read side by side and organized."""

import asyncio
from typing import Final

import orjson

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.mcp.errors import AnswerTooLarge, ServerError, ServerTimedOut
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.resources import SHOWN, Json, Resources
from smcp_computer.reply_limits import giving_way, reply_limit
from smcp_computer.resources.errors import too_large
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.routing import window_uri
from smcp_computer.tools import History
from smcp_proto.desktop import OrganizedDesktop, Window, organize_desktop
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.tools import GetDeskTopReq
from smcp_proto.uris import WINDOW, WindowUri, scheme_of
from smcp_service.lifecycle import Background

ANSWER_S: Final = 1.0
"""Reserved for the answer, out of the time that the caller waits."""
GRACE_S: Final = 0.5
"""How much later than its deadline a server's part may come: its requests have timed out by then."""
AT_ONCE: Final = 16
"""Windows that one server is asked for at a time."""
_HEAD: Final = b'{"desktops":['


class Desktop:
    """Windows that take longer than `read_s` are left out; the next request tries again. They are read in `tasks`: the
    MCP SDK takes some seconds to break off a request that a server does not take.
    """

    def __init__(
        self,
        index: ResourceIndex,
        history: History,
        events: ServerEvents,
        tasks: Background,
        *,
        read_s: float,
        max_body: int,
    ) -> None:
        self._index = index
        self._history = history
        self._tasks = tasks
        self._read_s = read_s
        self._max_body = max_body
        self._events = events

    async def __call__(self, request: GetDeskTopReq, call: Call) -> RawJson:
        """A GetDeskTopRet.

        A server that fails or is slow costs its own windows, and a warning in the log: one for each cause. So does a
        window that is too large; of windows that are too large together the largest are left out, as few as can be.

        Raises:
            TooLarge: the window that was asked for (`window`) is larger than the answer may be.
        """
        limit = reply_limit(call, self._max_body)
        only = None if request.window is None else window_uri(request.window)
        found: list[Window | ServerError] = []
        if (request.window is None or only is not None) and (request.desktop_size is None or request.desktop_size > 0):
            left = call.deadline - asyncio.get_running_loop().time() - ANSWER_S
            found = await self._read(only, max(min(self._read_s, left), 0.0), limit)
        windows = [each for each in found if isinstance(each, Window)]
        errors = [each for each in found if isinstance(each, ServerError)]
        oversized = [each for each in errors if isinstance(each, AnswerTooLarge)]
        organized = organize_desktop(windows, request.desktop_size, self._history.servers)
        for doubt in organized.warnings:
            self._events.warn(doubt.server, f"{doubt.uri}: {doubt.message}")
        tail = b'],"req_id":%b}' % orjson.dumps(request.req_id)
        if missing := len(errors) - len(oversized):  # a later request may get these
            tail = b'],"a2c_missing":%d,%b' % (missing, tail[2:])
        shown = self._fitting(organized, limit, limit - len(_HEAD) - len(tail))
        if only is not None and not shown:
            if oversized:
                raise too_large(oversized[0])
            if organized.desktops:
                raise TooLarge("the window is larger than the answer may be", details={"limit": limit})
        return RawJson(b"".join((_HEAD, b",".join(shown), tail)))

    async def _read(self, only: WindowUri | None, within: float, limit: int) -> list[Window | ServerError]:
        deadline = asyncio.get_running_loop().time() + within
        self._index.count_skipped("get_desktop")
        reading = {
            server: self._tasks.start(self._windows(server, only, deadline, limit), name=f"desktop:{server}")
            for server in self._index.servers(subscribable=True)
        }
        try:
            if reading:
                await asyncio.wait(reading.values(), timeout=within + GRACE_S)
        finally:
            for task in reading.values():
                task.cancel()
        found: list[Window | ServerError] = []
        for server, task in reading.items():
            silent = ServerTimedOut(server, "does not take requests")
            found += task.result() if task.done() else [self._left_out(silent)]
        return found

    async def _windows(
        self, server: str, only: WindowUri | None, deadline: float, limit: int
    ) -> list[Window | ServerError]:
        """For each window the window or an error; one error for a server that cannot be listed."""
        try:
            listing = await self._index.list(server, max(deadline - asyncio.get_running_loop().time(), 0.0))
            resources = self._index.connection(server)
        except ServerError as error:
            return [self._left_out(error)]
        turns = asyncio.Semaphore(AT_ONCE)

        async def read(resource: Json) -> Window | ServerError:
            try:
                async with turns:
                    return await _window(resources, resource, deadline, limit)
            except ServerError as error:
                return self._warned(f"{resource['uri'][:SHOWN]} is", error)

        listed = [each for uri, each in listing.items() if scheme_of(uri) == WINDOW]
        return await asyncio.gather(*(read(each) for each in listed if only is None or window_uri(each["uri"]) == only))

    def _left_out(self, error: ServerError) -> ServerError:
        self._index.left_out["get_desktop"] += 1
        return self._warned("its windows are", error)

    def _warned(self, what: str, error: ServerError) -> ServerError:
        self._events.warn(error.server, f"{what} left out of the desktop: it {error.what}")
        return error

    def _fitting(self, organized: OrganizedDesktop, limit: int, room: int) -> list[bytes]:
        shown = [orjson.dumps(text) for text in organized.desktops]
        sizes = [len(text) for text in shown]
        gone = giving_way(sizes, [size + 1 for size in sizes], room)
        for number in sorted(gone):
            server, uri = organized.sources[number]
            why = f"together the windows are larger than the answer may be, {limit} bytes"
            self._events.warn(server, f"{uri[:SHOWN]} is left out of the desktop: {why}")
        return [text for number, text in enumerate(shown) if number not in gone]


async def _window(resources: Resources, resource: Json, deadline: float, max_bytes: int) -> Window:
    left = deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise ServerTimedOut(resources.server, "did not answer in time")
    contents = (await resources.read(resource["uri"], timeout=left))["contents"]
    texts = (content.get("text") for content in contents if isinstance(content, dict))
    size = sum(len(text) for text in texts if isinstance(text, str))  # what is shown, from below
    if size > max_bytes:
        raise AnswerTooLarge(resources.server, limit=max_bytes, size=size)
    return Window(resources.server, resource, contents)
