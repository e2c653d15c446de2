"""The requests to one MCP server: by the SDK's session, or past it over a pipe; their errors become ours.

Below is `sdk_adapter`, which has the results as the server sent them. `session` and `resources` know what is asked.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from itertools import count
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types.methods import SERVER_RESULTS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, get_tracer
from pydantic import BaseModel, TypeAdapter, ValidationError

from smcp_bus.request_spans import RequestSpan, child_span
from smcp_bus.tracing import configured
from smcp_computer.mcp.errors import (
    SAID_ALOUD,
    BadAnswer,
    RequestRefused,
    ServerDied,
    ServerError,
    ServerTimedOut,
    unread,
)
from smcp_computer.mcp.sdk_adapter import EXCHANGE, CallSpan, Exchange, Watch

_log = logging.getLogger("smcp_computer.mcp.requests")

REQUEST_S: Final = 30.0
"""How long a server may take over one request, or one list with all its pages."""
PINGS: Final = ("ping", "server/discover")
"""The requests that ask whether a server is there, in MCP 2025 and MCP 2026."""
FIRST_ID: Final = 1 << 40
"""The session counts its own requests from 0."""
CANCEL_S: Final = 1.0
"""How long a server that reads nothing may hold up a cancellation."""

tracer: Final = get_tracer("smcp_computer.mcp")
_NO_SPAN: Final = nullcontext(INVALID_SPAN)


class _AnyResult(BaseModel):
    pass


_Request: Final = types.Request[dict[str, Any], str]
"""Named once: pydantic takes 5 µs to find the class of a generic model."""


class Requests:
    """The requests of one connection. Answers have at most `max_message` bytes."""

    def __init__(self, client: Client, watch: Watch, *, max_message: int) -> None:
        self.server = watch.server
        self.redactor = watch.redactor
        self.ended = watch.ended
        self._watch = watch
        self._client = client
        self._max_message = max_message

    async def send(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float,
        span: CallSpan | None = None,
        strict: bool = False,
        may_ask: bool = False,
    ) -> dict[str, Any]:
        """Send a request; its result's JSON as the server sent it. Cancelling the caller cancels it at the server.

        Args:
            strict: whether the whole result has to be valid. Not for lists: the protocol wants an invalid field of one
                resource to be a warning (desktop.txt, metadata of windows).
            may_ask: whether the result may be that the server asks for input (`resultType: input_required`).

        Raises:
            RequestRefused, ServerTimedOut, ServerDied, AnswerTooLarge: see `errors`.
            BadAnswer: its answer cannot be read, or asks for input that nobody can give.
        """
        exchange = Exchange(span or CallSpan({}))
        try:
            # Ours ends it, as the SDK's own limit does not bound handing the request over.
            async with asyncio.timeout(timeout):
                await self._exchange(method, dict(params or {}), exchange, timeout)
        except MCPError as error:
            raise self._logged(method, error) from None
        except TimeoutError:
            raise ServerTimedOut(self.server, f"did not answer within {timeout:.3g} s") from None
        except ValidationError:
            if strict or exchange.result is None:
                raise BadAnswer(self.server, "sent a result that is not valid") from None
        result = exchange.result or {}
        if result.get("resultType") == "input_required" and not may_ask:
            raise BadAnswer(self.server, f"asks for input for {method}, which is supported for tools only")
        return result

    async def _exchange(self, method: str, params: dict[str, Any], exchange: Exchange, timeout: float) -> None:
        """Send it, and put the result into `exchange`. Raises MCPError, and ValidationError: the result is wrong."""
        request = _Request(method=method, params=params)
        token = EXCHANGE.set(exchange)
        try:
            with self._late_span(method, params, exchange):
                await self._client.session.send_request(request, _AnyResult, request_read_timeout_seconds=2 * timeout)
        finally:
            EXCHANGE.reset(token)

    def _late_span(self, method: str, params: dict[str, Any], exchange: Exchange) -> AbstractContextManager[object]:
        """For a call that was not sampled: the SDK's own span is dropped, also if the call fails."""
        current = trace.get_current_span()
        if (
            method != "tools/call"
            or not isinstance(current, RequestSpan)
            or current.get_span_context().trace_flags.sampled
        ):
            return nullcontext()

        span = current.child(method, SpanKind.CLIENT, {"mcp.method.name": method})
        exchange.span.began(span, params)
        return span

    def _logged(self, method: str, error: MCPError) -> ServerError:
        translated = self.translated(error)
        if isinstance(translated, RequestRefused) and translated.code not in SAID_ALOUD:
            # the text does not reach Agents: it may be that of an exception
            what = self._watch.refused or f"MCP error {error.code}: {error.message!r:.500}"
            level = logging.DEBUG if method in PINGS else logging.INFO  # the supervisor tells what comes of it
            _log.log(level, "MCP server %r failed at %s: %s", self.server, method, what)
        return translated

    def translated(self, error: MCPError) -> ServerError:
        """The SDK's error as one of ours; what says that the connection is gone ends it."""
        not_read = unread(self.server, error, limit=self._max_message, max_values=self._watch.max_values)
        if not_read is not None:
            return not_read
        match error.code:
            case types.CONNECTION_CLOSED:
                self.ended.set()
                return ServerDied(self.server, "went away before it answered")
            case types.REQUEST_TIMEOUT:
                return ServerTimedOut(self.server, "did not answer in time")
            case types.INVALID_REQUEST if self.ended.is_set():
                return ServerDied(self.server, "was started again")
            case _:
                return RequestRefused(self.server, error.code, error.message, error.error.data)


@cache
def _shape(method: str, version: str) -> TypeAdapter[Any] | None:
    """What a result has to be; None: the protocol's version does not have the method."""
    shape: Any = SERVER_RESULTS.get((method, version))
    return None if shape is None else TypeAdapter(shape)


class DirectRequests(Requests):
    """Requests to a server over a pipe, past the SDK's session, which costs more than the rest of a call
    (bench/README). They have ids of their own, and `Watch` hands over their answers.

    The handshake, notifications, and what the server itself asks for stay with the session; over HTTP all requests do,
    since it knows their headers.
    """

    def __init__(self, client: Client, watch: Watch, *, max_message: int) -> None:
        super().__init__(client, watch, max_message=max_message)
        self._watch = watch
        self._version = client.protocol_version
        self._meta = watch.stamp if self._version in MODERN_PROTOCOL_VERSIONS else {}
        self._ids = count(FIRST_ID)
        self._is_traced = configured()

    async def _exchange(self, method: str, params: dict[str, Any], exchange: Exchange, timeout: float) -> None:
        id_ = next(self._ids)
        with self._span(method, id_) as span:
            meta = {**self._meta, **params.get("_meta", {})}
            if self._is_traced:
                inject(meta)
            if meta:
                params["_meta"] = meta
            if method == "tools/call" and span.is_recording():
                exchange.span.began(span, params)
            with self._watch.answer(id_) as answered:
                try:
                    await self._watch.write({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
                    answer = await answered
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, MCPError):
                    exchange.span.failed("connection_closed")
                    raise MCPError(code=types.CONNECTION_CLOSED, message="the connection has ended") from None
                except anyio.get_cancelled_exc_class():
                    await self._cancel(id_)
                    raise
            if isinstance(answer, types.ErrorData):
                code = str(answer.code)
                span.set_attributes({"error.type": code, "rpc.response.status_code": code})
                span.set_status(StatusCode.ERROR, answer.message)
                raise MCPError(code=answer.code, message=answer.message, data=answer.data)
            exchange.result = answer
            exchange.span.answered(answer)
        if (shape := _shape(method, self._version)) is not None:
            shape.validate_python(answer, by_name=False)

    def _span(self, method: str, id_: int) -> AbstractContextManager[Span]:
        if not self._is_traced:
            return _NO_SPAN
        attributes = {"mcp.method.name": method, "jsonrpc.request.id": str(id_)}
        return child_span(tracer, f"MCP send {method}", SpanKind.CLIENT, attributes)

    async def _cancel(self, id_: int) -> None:
        params = {"requestId": id_, "reason": "the caller gave it up"}
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        with anyio.move_on_after(CANCEL_S, shield=True), suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._watch.write(cancelled)
