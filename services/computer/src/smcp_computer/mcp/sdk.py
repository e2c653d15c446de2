"""Adapter to the MCP SDK: watched streams, raw requests, and the spans of tool calls.

All private names of the SDK (`mcp.client._transport`, `mcp.shared._stream_protocols`, `session._stamp`,
`session._dispatcher`) stand here. The streams are watched since the SDK's session does not report that the server went
away; requests are sent raw since the SDK refuses a whole list for one invalid field. The SDK opens a CLIENT span for
each request; a call's span gets the names of OpenTelemetry's conventions for MCP, and its outcome.
"""

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

import anyio
import mcp_types as types
import orjson
from mcp.client._transport import TransportStreams
from mcp.client.client import Client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode
from pydantic import ValidationError

from smcp_computer.mcp.errors import SAID_ALOUD, BadAnswer, RequestRefused, ServerDied, ServerError, ServerTimedOut
from smcp_computer.mcp.reading import read_again, unread

CONTENT_CHARS: Final = 16 * 1024
"""What is recorded of a call's arguments and of its result at most, where they are recorded at all."""


class CallSpan:
    """Args:
    labels: attributes that every span of the request has.
    content: whether arguments and results are recorded, too.
    """

    def __init__(self, labels: Mapping[str, str], *, content: bool = False) -> None:
        self._labels = labels
        self._content = content
        self._span: Span = trace.INVALID_SPAN

    def goes_to(self, server: Mapping[str, str]) -> None:
        """Which server is asked, as attributes."""
        self._labels = {**self._labels, **server}

    def began(self, span: Span, request: JSONRPCRequest) -> None:
        """A request is sent for the call, in `span`."""
        span.update_name(request.method)
        span.set_attributes(dict(self._labels))
        self._span = trace.INVALID_SPAN
        if request.method != "tools/call":
            return  # the SDK asks for the tools anew
        params: dict[str, Any] = request.params or {}
        tool = str(params.get("name"))
        self._span = span
        span.update_name(f"tools/call {tool}")
        span.set_attributes({"gen_ai.tool.name": tool, "gen_ai.operation.name": "execute_tool"})
        if self._content:
            span.set_attribute("gen_ai.tool.call.arguments", _text(params.get("arguments", {})))

    def answered(self, result: Mapping[str, Any]) -> None:
        """Its result came."""
        if self._content:
            self._span.set_attribute("gen_ai.tool.call.result", _text(result))
        if result.get("isError") is True:
            self.failed("tool_error")
        self._span = trace.INVALID_SPAN

    def failed(self, why: str) -> None:
        """The call ends without a good result; to be said before it is cancelled, since then its span has ended."""
        if self._span.is_recording():
            self._span.set_attribute("error.type", why)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span = trace.INVALID_SPAN


def _text(value: object) -> str:
    try:
        return orjson.dumps(value).decode()[:CONTENT_CHARS]
    except TypeError:
        return repr(value)[:CONTENT_CHARS]


Streams = TransportStreams

CALL_SPAN_KEY: Final = "smcp_computer.call_span"
"""Under which the OpenTelemetry context of a call holds its `CallSpan`."""


class Watch:
    """Wraps the streams of one connection.

    Attributes:
        ended: set when the server's side of the connection ended.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._calls: dict[str | int, CallSpan] = {}

    def wrap(self, streams: Streams) -> Streams:
        """The same streams, watched."""
        read, write = streams
        return _WatchedRead(read, self), _WatchedWrite(write, self)

    def sent(self, message: JSONRPCMessage) -> None:
        """Called in the sender's context, inside the span of the SDK."""
        match message:
            case JSONRPCRequest():
                span = trace.get_current_span()
                call = otel_context.get_value(CALL_SPAN_KEY)
                if span.is_recording() and isinstance(call, CallSpan):
                    call.began(span, message)
                    self._calls[message.id] = call
            case JSONRPCNotification(method="notifications/cancelled", params=dict(params)):
                self._calls.pop(params.get("requestId", ""), None)  # its span has ended
            case _:
                pass

    def received(self, item: SessionMessage | Exception) -> None:
        """Something came from the server: the call that it answers has its outcome."""
        if not self._calls or isinstance(item, Exception):
            return
        match item.message:
            case JSONRPCResponse(id=id_, result=result):
                call = self._calls.pop(id_, None)
                if call is not None:
                    call.answered(result)
            case JSONRPCError(id=id_) if id_ is not None:
                self._calls.pop(id_, None)  # the SDK says so in the span
            case _:
                pass

    def end(self) -> None:
        """The connection has ended: no call gets an answer any more."""
        for call in self._calls.values():
            call.failed("connection_closed")
        self._calls.clear()
        self.ended.set()


class _WatchedRead:
    def __init__(self, inner: ReadStream[SessionMessage | Exception], watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    @property
    def last_context(self) -> Any:
        """Of the item received last: the sender's context, which the SDK looks for."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        try:
            item = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._watch.end()
            raise
        if isinstance(item, ValidationError):  # nobody would hear of it: the SDK lets it fall
            item = read_again(item)
        self._watch.received(item)
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> "_WatchedRead":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> "_WatchedRead":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None


class _WatchedWrite:
    def __init__(self, inner: WriteStream[SessionMessage], watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def send(self, item: SessionMessage, /) -> None:
        self._watch.sent(item.message)
        try:
            await self._inner.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._watch.end()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> "_WatchedWrite":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None


SESSION_TERMINATED: Final = "Session terminated"
"""What the SDK's HTTP transport says where a restarted server does not know the session any more."""

_log = logging.getLogger("smcp_computer.mcp.requests")


class Requests:
    """Args:
    ended: set when the server's side of the connection is gone; set here, too, where an answer says so.
    max_message: bytes that an answer may have.
    """

    def __init__(self, server: str, client: Client, ended: asyncio.Event, *, max_message: int) -> None:
        self.server = server
        self._client = client
        self._ended = ended
        self._max_message = max_message

    async def send(self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float) -> dict[str, Any]:
        """Send a request; its result's JSON as the server sent it. A request given up on is cancelled at the server.

        Args:
            timeout: seconds.

        Raises:
            RequestRefused, ServerTimedOut, ServerDied, AnswerTooLarge: see `errors`.
            BadAnswer: its answer cannot be read, or asks for input, which a Computer cannot give.
        """
        # Past the SDK's `send_request`: that refuses a whole list for one field of one resource that is not valid, and
        # the protocol wants such a field to be a warning (desktop.txt, metadata of windows).
        session = self._client.session
        data: dict[str, Any] = {"method": method, **({} if params is None else {"params": dict(params)})}
        options: CallOptions = {}
        session._stamp(data, options)  # noqa: SLF001
        try:
            async with asyncio.timeout(timeout):  # the SDK's own would not bound handing the request over
                result = await session._dispatcher.send_raw_request(  # noqa: SLF001
                    method, data.get("params"), options
                )
        except MCPError as error:
            translated = self.translated(error)
            if isinstance(translated, RequestRefused) and translated.code not in SAID_ALOUD:
                # no Agent is told the text: it may be that of an exception
                what = (self.server, method, error.code, error.message)
                _log.info("MCP server %r failed at %s: MCP error %d: %.500r", *what)
            raise translated from None
        except TimeoutError:
            raise ServerTimedOut(self.server, f"did not answer within {timeout:.3g} s") from None
        if result.get("resultType") == "input_required":
            raise BadAnswer(self.server, "asks for input, which this Computer cannot give")
        return result

    def translated(self, error: MCPError) -> ServerError:
        """The SDK's error as one of ours; what says that the connection is gone ends it."""
        if (not_read := self.unread(error)) is not None:
            return not_read
        match error.code:
            case types.CONNECTION_CLOSED:
                self._ended.set()
                return ServerDied(self.server, "went away before it answered")
            case types.REQUEST_TIMEOUT:
                return ServerTimedOut(self.server, "did not answer in time")
            case types.INVALID_REQUEST if error.message == SESSION_TERMINATED:
                self._ended.set()
                return ServerDied(self.server, "was started again")
            case _:
                return RequestRefused(self.server, error.code, error.message, error.error.data)

    def unread(self, error: MCPError) -> ServerError | None:
        """The error of an answer that was too large or cannot be read; None: another error."""
        return unread(self.server, error, limit=self._max_message)
