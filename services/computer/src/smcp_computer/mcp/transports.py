"""From a server's configuration to a transport of the SDK."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import orjson
from mcp.client.streamable_http import streamable_http_client

from smcp_computer.mcp.reading import ROOM, bounded
from smcp_computer.mcp.sdk import Streams, Watch
from smcp_computer.mcp.server_log import StderrLog
from smcp_computer.mcp.sse import sse_transport
from smcp_computer.mcp.stdio import stdio_transport
from smcp_proto.durations import parse_duration
from smcp_proto.schemas.config import (
    MCPServerConfig,
    MCPServerStdioConfig,
    MCPServerStreamableHttpConfig,
    MCPServerStreamableHttpParameters,
)

LONGEST_NOTIFICATION: Final = 4096
"""Bytes."""


@asynccontextmanager
async def open_transport(
    server: MCPServerConfig, watch: Watch, errors: StderrLog, *, max_message: int
) -> AsyncIterator[Streams]:
    """Connect to a server, or start it.

    Args:
        server: its configuration, without placeholders.
        watch: told of what passes, and of the end.
        errors: told what a program writes to its standard error, and over SSE of what is no message.
        max_message: bytes that what the server sends in one message may have.

    Raises:
        StartFailed: a program that cannot be started.
        Lost: a server behind SSE opened no stream, or did not take a message.
        httpx2.HTTPError, ExceptionGroup: an address that cannot be reached.
    """
    if isinstance(server, MCPServerStdioConfig):
        async with stdio_transport(server.name, server.server_parameters, errors, max_message=max_message) as streams:
            yield watch.wrap(streams)
    elif isinstance(server, MCPServerStreamableHttpConfig):
        async with _streamable(server.server_parameters, max_message) as streams:
            yield watch.wrap(streams)
    else:
        parameters = server.server_parameters
        async with sse_transport(parameters, _headers(parameters.headers), errors, max_message=max_message) as streams:
            yield watch.wrap(streams)


def request_s(server: MCPServerConfig) -> float | None:
    """Seconds in which the server has to answer a request that is no call of a tool; None: it is not configured."""
    if not isinstance(server, MCPServerStreamableHttpConfig):
        return None
    return parse_duration(server.server_parameters.timeout).total_seconds()


@asynccontextmanager
async def _streamable(parameters: MCPServerStreamableHttpParameters, max_message: int) -> AsyncIterator[Streams]:
    """The SDK reads every answer under `sse_read_timeout`, as an answer may be a stream. What never is gets `timeout`:
    notifications, behind which everything else waits, and the end of the session. Requests have it above (`session`).
    """
    regular_s = parse_duration(parameters.timeout).total_seconds()
    timeout = httpx2.Timeout(regular_s, read=parse_duration(parameters.sse_read_timeout).total_seconds())

    async def bound(request: httpx2.Request) -> None:
        if request.method == "DELETE" or (request.method == "POST" and _is_notification(request.content)):
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(regular_s).as_dict()}

    async with (
        httpx2.AsyncClient(
            headers=_headers(parameters.headers),
            timeout=timeout,
            event_hooks={"request": [bound], "response": [bounded(max_message + ROOM)]},
        ) as client,
        streamable_http_client(
            parameters.url,
            http_client=client,
            terminate_on_close=parameters.terminate_on_close,
            max_sse_event_size=max_message + ROOM,
        ) as streams,
    ):
        yield streams


def _is_notification(body: bytes) -> bool:
    """Whether a message asks for no answer; notifications of ours are short, so that calls are not parsed for this."""
    if len(body) > LONGEST_NOTIFICATION:
        return False
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(message, dict) and "id" not in message


def _headers(headers: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: value if isinstance(value, str) else str(value) for name, value in (headers or {}).items()}
