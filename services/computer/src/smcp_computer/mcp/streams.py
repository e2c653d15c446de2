"""The pair of streams between a transport and the SDK's session, watched.

Watched for its end (the SDK's session does not tell its user that the server went away), and for spans: the SDK opens
one CLIENT span per request (`MCP send tools/call echo`) and puts its `traceparent` into the request's `_meta`; here it
gets the name and the attributes of OpenTelemetry's conventions for MCP, and its outcome.
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
from opentelemetry.trace import Span, Status, StatusCode

Streams = TransportStreams

LABELS_KEY: Final = "smcp_computer.labels"
"""Under which the OpenTelemetry context holds the attributes that every span of a call has."""


class Watch:
    """Wraps the streams of one connection.

    Attributes:
        ended: set when the server's side of the connection ended.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._spans: dict[str | int, Span] = {}

    def wrap(self, streams: Streams) -> Streams:
        read, write = streams
        return _WatchedRead(read, self), _WatchedWrite(write, self)

    def sent(self, message: JSONRPCMessage) -> None:
        """Called in the sender's context, inside the span of the SDK."""
        match message:
            case JSONRPCRequest():
                span = trace.get_current_span()
                if span.is_recording():
                    _describe(span, message)
                    self._spans[message.id] = span
            case JSONRPCNotification(method="notifications/cancelled", params=dict(params)):
                self._spans.pop(params.get("requestId", ""), None)  # it has ended
            case _:
                pass

    def received(self, item: SessionMessage | Exception) -> None:
        if not self._spans or isinstance(item, Exception):
            return
        match item.message:
            case JSONRPCResponse(id=id_, result=result):
                span = self._spans.pop(id_, trace.INVALID_SPAN)
                if result.get("isError") is True:
                    span.set_attribute("error.type", "tool_error")
                    span.set_status(Status(StatusCode.ERROR))
            case JSONRPCError(id=id_) if id_ is not None:
                self._spans.pop(id_, None)
            case _:
                pass

    def end(self) -> None:
        self._spans.clear()
        self.ended.set()


def _describe(span: Span, request: JSONRPCRequest) -> None:
    params: dict[str, Any] = request.params or {}
    target = params.get("name")
    named = request.method == "tools/call" and isinstance(target, str)
    span.update_name(f"{request.method} {target}" if named else request.method)
    if named:
        span.set_attribute("gen_ai.tool.name", str(target))
        span.set_attribute("gen_ai.operation.name", "execute_tool")
    labels = otel_context.get_value(LABELS_KEY)
    if isinstance(labels, dict):
        span.set_attributes(labels)


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
