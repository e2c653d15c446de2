"""The pair of streams between a transport and the SDK's session, watched.

Watched for its end (the SDK's session does not tell its user that the server went away), and for the span that the SDK
opens for each request (`call_span`).
"""

import asyncio
from types import TracebackType
from typing import Any, Final

import anyio
from mcp.client._transport import TransportStreams
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from opentelemetry import context as otel_context
from opentelemetry import trace
from pydantic import ValidationError

from smcp_computer.mcp.call_span import CallSpan
from smcp_computer.mcp.unread import read_again

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
