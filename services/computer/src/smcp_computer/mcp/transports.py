"""From a server's configuration to a connection, over a transport of the SDK that is bounded in time and bytes."""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from smcp_bus import exact_json
from smcp_computer.mcp.errors import ABOVE_LIMIT, ROOM, TOO_MANY_VALUES, ServerFailed
from smcp_computer.mcp.events import ResourcesChanged, ResourceUpdated, ServerEvent, ToolsChanged
from smcp_computer.mcp.resources import REQUEST_S, ListenStream, Lists, Resources
from smcp_computer.mcp.sdk_adapter import Streams, Watch
from smcp_computer.mcp.server_log import StderrLog, answered, describe, first_of
from smcp_computer.mcp.session import ServerConnection
from smcp_computer.mcp.stdio import stdio_transport
from smcp_computer.redaction import Redactor
from smcp_computer.settings import HostSettings
from smcp_proto.errors import TooLarge
from smcp_proto.printable import printable
from smcp_proto.schemas import config as schemas
from smcp_proto.validation import malformed

Negotiation = Literal["auto", "legacy"]
_CLIENT: Final = types.Implementation(name="smcp-computer", version=version("smcp-computer"))
NOT_DELIVERED: Final = "did not take a message"


@dataclass(frozen=True)
class Limits:
    max_message: int = 32 * 1024 * 1024
    """Bytes that what a server sends in one message may have: no answer that is larger reaches an Agent."""
    max_values: int = exact_json.MAX_VALUES
    """Values that such a message may hold."""
    start_s: float = 30.0
    """How long the first start may take, the first list of tools included."""
    silence_s: float = 30.0
    """A server that has sent nothing for so long, though it was asked, hangs. It is asked after half of this."""
    wait_s: float = 3.0
    """How long a call waits for a server that is being started."""
    logs: Path | None = None
    """The directory of the servers' own logs."""
    strict: bool = False
    """Offer no tool of a server while its configuration names tools that it does not have."""


@asynccontextmanager
async def connect(
    server: schemas.MCPServerConfig,
    *,
    negotiation: Negotiation,
    limits: Limits,
    notify: Callable[[ServerEvent], None],
    log: StderrLog | None = None,
    redactor: Redactor | None = None,
    host: HostSettings | None = None,
) -> AsyncIterator[ServerConnection]:
    """Connect to a server and shake hands; raises whatever the transport and the handshake raise, and ServerFailed
    where HTTP refuses the requests.

    Args:
        server: its configuration, without placeholders.
        negotiation: `auto` asks for the newest protocol first; `legacy` is for servers that end at such a request.
        notify: called for what the server tells by itself, in the connection's tasks: it must not block.
    """
    watch = Watch(server.name, redactor, max_values=limits.max_values)
    answer_s = REQUEST_S
    if isinstance(server, schemas.MCPServerStreamableHttpConfig):
        answer_s = schemas.parse_duration(server.server_parameters.timeout).total_seconds() or answer_s
    modern = False

    async def handle(message: types.ServerNotification | Exception) -> None:
        match message:
            case _ if modern:
                pass  # those of MCP 2026 come on a stream, see `ListenStream`
            case types.ToolListChangedNotification():
                notify(ToolsChanged(server.name))
            case types.ResourceListChangedNotification():
                notify(ResourcesChanged(server.name))
            case types.ResourceUpdatedNotification(params=params):
                notify(ResourceUpdated(server.name, params.uri))

    log, host = log or StderrLog(server.name), host or HostSettings()
    client = Client(
        open_transport(server, host, watch, log, max_message=limits.max_message),
        mode=negotiation,
        read_timeout_seconds=answer_s,
        message_handler=handle,
        elicitation_callback=watch.elicit,
        client_info=_CLIENT,
        cache=None,
    )
    async with named_failures(watch), client:
        modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        over_http = not isinstance(server, schemas.MCPServerStdioConfig)
        connection = ServerConnection(client, watch, limits.max_message, max(answer_s, REQUEST_S), over_http)
        stream = ListenStream(connection, notify) if modern else None
        async with anyio.create_task_group() as tasks:
            if stream is not None:
                tasks.start_soon(stream.run)
            if (resources := client.server_capabilities.resources) is not None:
                connection.resources = Resources(connection, resources, stream)
            if client.server_capabilities.prompts is not None:
                connection.prompts = Lists(connection)
            yield connection
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_transport(
    server: schemas.MCPServerConfig, host: HostSettings, watch: Watch, log: StderrLog, *, max_message: int
) -> AsyncIterator[Streams]:
    """Connect to a server, or start it. A message has at most `max_message` bytes; over SSE the SDK's 1 MiB.
    Raises as `stdio_transport`; ServerFailed: a server behind SSE did not take a message; httpx2.HTTPError,
    ExceptionGroup: an address cannot be reached."""
    if isinstance(server, schemas.MCPServerStdioConfig):
        transport = stdio_transport(server.server_parameters, host, watch, log, max_message=max_message)
    elif isinstance(server, schemas.MCPServerStreamableHttpConfig):
        transport = _streamable(server.server_parameters, watch, max_message)
    else:
        transport = _sse(server.server_parameters)
    async with transport as streams:
        try:
            yield watch.wrap(streams)
        finally:
            watch.end()


@asynccontextmanager
async def _streamable(
    parameters: schemas.MCPServerStreamableHttpParameters, watch: Watch, max_message: int
) -> AsyncIterator[Streams]:
    """The SDK reads every answer under `sse_read_timeout`, as an answer may be a stream. What never is gets `timeout`:
    notifications, behind which everything else waits, and the end of the session. Requests have it above (`session`).
    """
    regular_s = schemas.parse_duration(parameters.timeout).total_seconds()
    timeout = httpx2.Timeout(regular_s, read=schemas.parse_duration(parameters.sse_read_timeout).total_seconds())

    async def on_request(request: httpx2.Request) -> None:
        is_notification = request.method == "POST" and b'"id":' not in await request.aread()
        if is_notification or request.method == "DELETE":
            _limit(request, regular_s)

    async def on_response(response: httpx2.Response) -> None:
        is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        if response.request.method == "POST":
            if response.status_code == 404 and "mcp-session-id" in response.request.headers:
                watch.end("does not know its session any more")
            status = response.status_code  # an MCP server puts JSON-RPC errors on 400 and 404, too
            is_refused = status in (401, 403, 407) or status >= 500 or (status == 404 and not is_json)
            watch.refused = answered(status) if is_refused else ""
        if is_json:
            response.aread = _bounded(response, max_message + ROOM, watch.max_values)  # type: ignore[method-assign]
        else:
            events = _bounded_events(response, max_message + ROOM, watch.max_values)
            response.aiter_text = events  # type: ignore[method-assign]

    class Client(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            try:
                return await super().send(request, **options)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                watch.unsent(await request.aread(), describe(error))
                raise

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [on_request], "response": [on_response]}
    async with (
        Client(headers=_headers(parameters.headers), timeout=timeout, event_hooks=hooks) as client,
        streamable_http_client(
            parameters.url,
            http_client=client,
            terminate_on_close=parameters.terminate_on_close,
            max_sse_event_size=max_message + ROOM,
        ) as streams,
    ):
        yield streams


@asynccontextmanager
async def named_failures(watch: Watch) -> AsyncIterator[None]:
    """Names the status of HTTP, which the SDK's error leaves out, and the field of an answer that is not valid:
    pydantic's text quotes values in part, in which no secret would be found."""
    try:
        yield
    except Exception as error:
        first = first_of(error)
        if watch.refused and isinstance(first, MCPError):
            raise ServerFailed(watch.refused) from None
        if isinstance(first, ValidationError):
            raise ServerFailed(f"sent an answer that is not valid: {printable(malformed(first).message)}") from None
        raise


def _bounded(response: httpx2.Response, limit: int, max_values: int) -> Callable[[], Coroutine[Any, Any, bytes]]:
    """`response.aread`, but it breaks off above so many bytes, unpacked, or values; the SDK answers the request with
    the error."""

    async def read() -> bytes:
        found = bytearray()
        async with aclosing(response.aiter_bytes()) as parts:
            async for part in parts:
                found += part
                if len(found) > limit:
                    raise httpx2.StreamError(ABOVE_LIMIT)
        body = bytes(found)
        try:
            await exact_json.check_cost(body, max_values, "the answer")
        except TooLarge:
            raise httpx2.StreamError(TOO_MANY_VALUES) from None
        return body

    return read


def _bounded_events(response: httpx2.Response, limit: int, max_values: int) -> Callable[..., AsyncIterator[str]]:
    """`response.aiter_text` for a stream of events, of which each is given when it has come whole: one that holds too
    many values breaks off the stream before it is read. One above so many characters is left to the SDK, which refuses
    it."""
    whole = response.aiter_text

    async def read(chunk_size: int | None = None) -> AsyncIterator[str]:
        begun, size = [""], 0
        async for text in whole(chunk_size):
            near = begun[-1][-3:] + text
            begun.append(text)
            size += len(text)
            if size <= limit and "\n\n" not in near and "\r\n\r\n" not in near:
                continue
            found = "".join(begun)
            end = len(found) if size > limit else max(found.rfind("\n\n") + 2, found.rfind("\r\n\r\n") + 4)
            await _check_events(found[:end], max_values)
            yield found[:end]
            begun, size = [found[end:]], len(found) - end
        await _check_events("".join(begun), max_values)
        yield "".join(begun)

    return read


async def _check_events(text: str, max_values: int) -> None:
    """Raises httpx2.SSEError: an event holds more values, or has more lines."""
    if len(text) <= 2 * max_values:
        return
    try:
        for event in text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n", max_values):
            lines = event.split("\n", max_values)
            data = "".join(line.removeprefix("data:") for line in lines if line.startswith("data:"))
            await exact_json.check_cost(data.encode(), max_values, "the answer")
            if len(lines) > max_values:
                raise httpx2.SSEError(TOO_MANY_VALUES)
    except TooLarge:
        raise httpx2.SSEError(TOO_MANY_VALUES) from None


@asynccontextmanager
async def _sse(parameters: schemas.MCPSSEParameters) -> AsyncIterator[Streams]:
    """The SDK gives `sse_read_timeout` to a POST, too, and only logs one that failed: here that ends the connection."""

    async def fail(why: str) -> None:
        raise ServerFailed(why)

    class Client(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            if request.method != "POST":
                return await super().send(request, **options)
            _limit(request, parameters.timeout)
            try:
                response = await super().send(request, **options)
            except httpx2.HTTPError as error:
                is_late = isinstance(error, httpx2.TimeoutException)
                tasks.start_soon(fail, f"{NOT_DELIVERED} in time" if is_late else NOT_DELIVERED)
                raise
            if response.is_error:
                tasks.start_soon(fail, f"{NOT_DELIVERED}: it {answered(response.status_code)}")
            return response

    async with (
        anyio.create_task_group() as tasks,
        sse_client(
            parameters.url,
            headers=_headers(parameters.headers),
            timeout=parameters.timeout,
            sse_read_timeout=parameters.sse_read_timeout,
            httpx_client_factory=partial(Client),  # whose parameters are given by name
        ) as streams,
    ):
        yield streams


def _limit(request: httpx2.Request, seconds: float) -> None:
    request.extensions = {**request.extensions, "timeout": httpx2.Timeout(seconds).as_dict()}


def _headers(headers: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (headers or {}).items()}
