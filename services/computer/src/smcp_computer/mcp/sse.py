"""The transport to a server over HTTP with SSE, MCP's legacy one: it writes on one stream, and takes messages by POST.

The SDK's own transport reads no message above 1 MiB, gives `sse_read_timeout` to every answer (that of a message's POST
is no stream, and gets `timeout`), and goes on reading where a message cannot be delivered, so that whoever waits for an
answer waits for ever: here the connection ends. This one is what the SDK takes for a transport: an async context
manager that gives a pair of streams.
"""

import codecs
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import IncrementalNewlineDecoder
from typing import Final
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared._httpx_utils import request_within_origin, sse_within_origin
from mcp.shared.message import SessionMessage

from smcp_computer.mcp.errors import Lost
from smcp_computer.mcp.reading import KEPT, ROOM, Cut, Lines, parsed
from smcp_computer.mcp.sdk import Streams
from smcp_computer.mcp.server_log import StderrLog
from smcp_proto.schemas.config import MCPSSEParameters

_log = logging.getLogger("smcp_computer.mcp.sse")

NOT_DELIVERED: Final = "did not take a message"
TOO_SLOW: Final = "did not take a message in time"
NO_STREAM: Final = "did not open a stream of events"
NO_ENDPOINT: Final = "did not say where it takes messages"
OTHER_ORIGIN: Final = "takes messages at another origin than its own"
_KIND: Final = "text/event-stream"


@asynccontextmanager
async def sse_transport(
    parameters: MCPSSEParameters, headers: dict[str, str], errors: StderrLog, *, max_message: int
) -> AsyncIterator[Streams]:
    """Connect to a server.

    Args:
        errors: told of what it sends that is no message, or too large.
        max_message: bytes that what the server sends in one message may have. A longer one is let go as it comes, and
            who waits for it gets an error.

    Raises:
        Lost: it opened no stream, or did not take a message; then the body is cancelled.
        httpx2.HTTPError, ExceptionGroup: an address that cannot be reached.
    """
    to_session, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    write_stream, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    timeout = httpx2.Timeout(parameters.timeout, read=parameters.sse_read_timeout)
    try:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as client,
            sse_within_origin(client, parameters.url) as source,
            anyio.create_task_group() as tasks,
        ):
            _check(source.response)
            stream = _Stream(client, parameters, errors, max_message)
            endpoint: str = await tasks.start(stream.read, source.response, to_session)
            tasks.start_soon(stream.write, endpoint, from_session)
            yield read_stream, write_stream
            tasks.cancel_scope.cancel()
    finally:
        for each in (to_session, read_stream, write_stream, from_session):
            each.close()


def _check(response: httpx2.Response) -> None:
    response.raise_for_status()
    if response.headers.get("content-type", "").partition(";")[0].strip().lower() != _KIND:
        raise Lost(NO_STREAM)


class _Stream:
    """The tasks between a server and the session's streams."""

    def __init__(
        self, client: httpx2.AsyncClient, parameters: MCPSSEParameters, log: StderrLog, max_message: int
    ) -> None:
        self._client = client
        self._url = parameters.url
        self._post = httpx2.Timeout(parameters.timeout)
        self._log = log
        self._max_message = max_message

    async def read(
        self,
        response: httpx2.Response,
        to_session: MemoryObjectSendStream[SessionMessage | Exception],
        *,
        task_status: TaskStatus[str],
    ) -> None:
        """Messages from the server, until its stream ends. The address that takes messages is what starts it."""
        events = Events(self._max_message + ROOM)
        endpoint: str | None = None
        try:
            async with to_session:
                async for chunk in response.aiter_bytes():
                    for event in events.feed(chunk):
                        if event.name == "endpoint" and endpoint is None and isinstance(event.data, str):
                            endpoint = self._endpoint(event.data)
                            task_status.started(endpoint)
                        elif event.name == DEFAULT_NAME:
                            message = parsed(event.data, self._log, self._max_message)
                            if message is not None:
                                await to_session.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the session is gone
        except httpx2.HTTPError as error:
            if endpoint is None:
                raise
            _log.debug("a stream of events ended: %r", error)
        if endpoint is None:
            raise Lost(NO_ENDPOINT)

    def _endpoint(self, said: str) -> str:
        endpoint = urljoin(self._url, said)
        if urlsplit(endpoint)[:2] != urlsplit(self._url)[:2]:
            raise Lost(OTHER_ORIGIN)  # what the configuration says of headers is for the server alone
        return endpoint

    async def write(self, endpoint: str, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Messages to the server, one after the other."""
        async with from_session:
            async for item in from_session:
                body = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                try:
                    response = await request_within_origin(
                        self._client,
                        "POST",
                        endpoint,
                        content=body,
                        headers={"content-type": "application/json"},
                        timeout=self._post,
                    )
                except httpx2.HTTPError as error:
                    raise Lost(TOO_SLOW if isinstance(error, httpx2.TimeoutException) else NOT_DELIVERED) from None
                if not response.is_success:
                    raise Lost(NOT_DELIVERED)


DEFAULT_NAME: Final = "message"
_LONGEST_FIELD: Final = len("event: ")


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` and `retry` are for clients that come back to a stream; MCP's do not."""

    name: str
    data: str | Cut
    """Its lines of data, joined; of what is longer than allowed what is known."""


class Events:
    """Args:
    longest: bytes (of UTF-8) that the data of an event may have. What is above it is let go as it comes.
    """

    def __init__(self, longest: int) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._lines = Lines(IncrementalNewlineDecoder(utf8, translate=True), longest + _LONGEST_FIELD)
        self._longest = longest
        self._begin()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes. One without data is none."""
        found = []
        for line in self._lines.feed(chunk):
            if line != "":
                self._field(line)
                continue
            if self._data:
                found.append(Event(self._name or DEFAULT_NAME, self._joined()))
            self._begin()
        return found

    def _begin(self) -> None:
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._head: str | None = None
        """Of data that are too long by now; their end is the one line then."""

    def _field(self, line: str | Cut) -> None:
        head, tail = (line.head, line.tail) if isinstance(line, Cut) else (line, line)
        name, _, value = head.partition(":")
        dropped = len(head) - len(value.removeprefix(" "))
        value = head[dropped:]
        if name == "event":
            self._name = value
        elif name == "data":
            if isinstance(line, Cut):
                self._add(value, value if tail == head else tail, line.size - dropped)
            else:
                self._add(value, value, len(value) if value.isascii() else len(value.encode("utf-8", "replace")))

    def _add(self, head: str, tail: str, size: int) -> None:
        self._size += size + bool(self._data)
        if self._size <= self._longest:
            self._data.append(head)
            return
        before = self._data if self._head is None else [self._head]
        self._head = "\n".join([*before, head])[:KEPT]
        self._data = ["\n".join([*self._data, tail])[-KEPT:]]

    def _joined(self) -> str | Cut:
        data = "\n".join(self._data)
        return data if self._head is None else Cut(self._head, data, self._size)
