"""Requests to a server over a pipe, past the SDK's session, which costs more than the rest of a call (bench/README).

The handshake, notifications, and what the server itself asks for stay with the session. Requests from here have ids of
their own, and `Watch` hands over their answers. Over HTTP all requests are the session's: it knows their headers.
"""

from contextlib import suppress
from itertools import count
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.propagate import inject
from opentelemetry.trace import SpanKind, StatusCode, get_tracer

from smcp_computer.mcp.sdk_adapter import Exchange, Requests, Watch

tracer = get_tracer("smcp_computer.mcp")
FIRST_ID: Final = 1 << 40
"""The session counts its own requests from 0."""
CANCEL_S: Final = 1.0
"""How long a server that reads nothing may hold up a cancellation."""


class PipeRequests(Requests):
    def __init__(self, client: Client, watch: Watch, *, max_message: int) -> None:
        super().__init__(client, watch, max_message=max_message)
        self._watch = watch
        self._version = client.protocol_version
        self._meta = watch.stamp if self._version in MODERN_PROTOCOL_VERSIONS else {}
        self._ids = count(FIRST_ID)

    async def _exchange(self, method: str, params: dict[str, Any], exchange: Exchange, timeout: float) -> None:
        id_ = next(self._ids)
        said = {"mcp.method.name": method, "jsonrpc.request.id": str(id_)}
        with tracer.start_as_current_span(
            f"MCP send {method}",
            kind=SpanKind.CLIENT,
            attributes=said,
            record_exception=False,  # its text may be the server's
            set_status_on_exception=False,
        ) as span:
            meta = {**self._meta, **params.get("_meta", {})}
            inject(meta)
            if meta:
                params["_meta"] = meta
            request = JSONRPCRequest(jsonrpc="2.0", id=id_, method=method, params=params)
            if method == "tools/call" and span.is_recording():
                exchange.span.began(span, request)
            async with self._watch.answer(id_) as answer:
                try:
                    await self._watch.write(request)
                    message = await answer
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, MCPError):
                    exchange.span.failed("connection_closed")
                    raise MCPError(code=types.CONNECTION_CLOSED, message="the connection has ended") from None
                except anyio.get_cancelled_exc_class():
                    await self._cancel(id_)
                    raise
            if isinstance(message, JSONRPCError):
                code = str(message.error.code)
                span.set_attributes({"error.type": code, "rpc.response.status_code": code})
                span.set_status(StatusCode.ERROR, message.error.message)
                raise MCPError(code=message.error.code, message=message.error.message, data=message.error.data)
            exchange.result = message.result
            exchange.span.answered(message.result)
        with suppress(KeyError):  # a method that the protocol's version does not have
            validate_server_result(method, self._version, message.result)

    async def _cancel(self, id_: int) -> None:
        params = {"requestId": id_, "reason": "the caller gave it up"}
        cancelled = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
        with anyio.move_on_after(CANCEL_S, shield=True), suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._watch.write(cancelled)
