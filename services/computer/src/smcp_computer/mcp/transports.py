"""From a server's configuration to a transport of the SDK, bounded in time and bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from itertools import count
from typing import Any, Final
from urllib.request import getproxies

import aiohttp
import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from multidict import CIMultiDict
from yarl import URL

from smcp_bus import exact_json
from smcp_computer.mcp.errors import ABOVE_LIMIT, ROOM, TOO_MANY_VALUES, ServerFailed
from smcp_computer.mcp.sdk_adapter import Streams, Watch
from smcp_computer.mcp.server_log import StderrLog, answered, first_of
from smcp_computer.mcp.stdio import stdio_transport
from smcp_computer.settings import HostSettings
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.config import (
    MCPServerConfig,
    MCPServerStdioConfig,
    MCPServerStreamableHttpConfig,
    MCPServerStreamableHttpParameters,
    MCPSSEParameters,
    parse_duration,
)

NOT_DELIVERED: Final = "did not take a message"
TOO_SLOW: Final = "did not take a message in time"
FORGOTTEN: Final = "does not know its session any more"
KEPT_S: Final = 5.0
"""How long an unused connection is kept, as httpx2 itself does; uvicorn closes it then."""
HEADER_BYTES: Final = 64 * 1024
DRAIN_S: Final = 0.1
"""How long the end of a stream may take to follow the result: it is on its way with it, or the server keeps it open."""
_SESSION: Final = "mcp-session-id"
_SENT: Final = "smcp-sent"
"""A header that stays here: the request has been sent, and its outcome stands in `_AiohttpTransport` under this number.
"""
_OF_ONE_REQUEST: Final = ("content-length", "mcp-method", "mcp-name", "mcp-param-")
_ADDED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add by itself."""


@asynccontextmanager
async def open_transport(
    server: MCPServerConfig, host: HostSettings, watch: Watch, log: StderrLog, *, max_message: int
) -> AsyncIterator[Streams]:
    """Connect to a server, or start it. A message has at most `max_message` bytes; over SSE the SDK's 1 MiB.
    Raises as `stdio_transport`; ServerFailed: a server behind SSE did not take a message; httpx2.HTTPError,
    ExceptionGroup: an address cannot be reached."""
    if isinstance(server, MCPServerStdioConfig):
        transport = stdio_transport(server.server_parameters, host, watch, log, max_message=max_message)
    elif isinstance(server, MCPServerStreamableHttpConfig):
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
    parameters: MCPServerStreamableHttpParameters, watch: Watch, max_message: int
) -> AsyncIterator[Streams]:
    """The SDK reads every answer under `sse_read_timeout`, as an answer may be a stream. What never is gets `timeout`:
    notifications, behind which everything else waits, and the end of the session. Requests have it above (`session`).
    """
    regular_s = parse_duration(parameters.timeout).total_seconds()
    timeout = httpx2.Timeout(regular_s, read=parse_duration(parameters.sse_read_timeout).total_seconds())

    async def on_request(request: httpx2.Request) -> None:
        is_notification = request.method == "POST" and b'"id":' not in await request.aread()
        if is_notification or request.method == "DELETE":
            _limit(request, regular_s)

    async def on_response(response: httpx2.Response) -> None:
        is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        if response.request.method == "POST":
            if response.status_code == 404 and _SESSION in response.request.headers:
                watch.end(FORGOTTEN)
            watch.refused = answered(response.status_code) if _refuses(response.status_code, is_json) else ""
        if is_json:
            response.aread = _bounded(response, max_message + ROOM, watch.max_values)  # type: ignore[method-assign]
        else:
            events = _bounded_events(response, max_message + ROOM, watch.max_values)
            response.aiter_text = events  # type: ignore[method-assign]

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [on_request], "response": [on_response]}
    transport = None if getproxies() else _AiohttpTransport(watch, timeout, max_message + ROOM)
    watch.post = None if transport is None else transport.post
    async with (
        httpx2.AsyncClient(
            headers=_headers(parameters.headers),
            timeout=timeout,
            event_hooks=hooks,
            transport=transport,
        ) as client,
        streamable_http_client(
            parameters.url,
            http_client=client,
            terminate_on_close=parameters.terminate_on_close,
            max_sse_event_size=max_message + ROOM,
        ) as streams,
    ):
        yield streams


class _AiohttpTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of the SDK over aiohttp, whose parser is in C. It goes through no proxy.

    `post` sends a request past the SDK, with the headers of the SDK's last one. Its result and its progress go straight
    to the call: through the SDK's tasks and httpx2 they would cost as much as the rest of the call (bench/README). With
    whatever else comes the SDK goes on, as if it had sent the request.
    """

    def __init__(self, watch: Watch, timeout: httpx2.Timeout, limit: int) -> None:
        self._watch = watch
        self._timeout = aiohttp.ClientTimeout(sock_connect=timeout.connect, sock_read=timeout.read)
        self._limit = limit
        self._url = URL()
        self._headers: list[tuple[str, str]] = []
        self._outcomes: dict[str, httpx2.Response | httpx2.TransportError] = {}
        self._numbers = count()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=httpx2.create_ssl_context(), keepalive_timeout=KEPT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_ADDED,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
        )

    async def post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, str] | None:
        """Send a request. None: its result has come; else the headers with which the SDK is to go on."""
        outcome: httpx2.Response | httpx2.TransportError
        given = CIMultiDict(self._headers)
        given.update(headers)
        begun: list[bytes] = []
        try:
            with _errors_of_httpx2():
                response = await self._request("POST", self._url, given, exact_json.written(message), self._timeout)
                if await self._taken(message["id"], response, begun):
                    return None
            outcome = _response(response, begun)
        except httpx2.TransportError as error:
            outcome = error
        number = str(next(self._numbers))
        self._outcomes[number] = outcome
        return {**headers, _SENT: number}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (number := request.headers.pop(_SENT, None)) is not None:  # a redirect would repeat it
            outcome = self._outcomes.pop(number)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        url, headers, limits = request.url, request.headers.multi_items(), request.extensions["timeout"]
        target = URL(f"{url.scheme}://{url.netloc.decode()}{url.raw_path.decode()}", encoded=True)  # without a login
        if request.method == "POST":
            self._url = target
            self._headers = [(name, value) for name, value in headers if not name.startswith(_OF_ONE_REQUEST)]
        timeout = aiohttp.ClientTimeout(sock_connect=limits["connect"], sock_read=limits["read"])
        with _errors_of_httpx2():
            return _response(await self._request(request.method, target, headers, await request.aread(), timeout))

    async def aclose(self) -> None:
        await self._session.close()

    async def _request(
        self, method: str, url: URL, headers: Any, body: bytes, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        return await self._session.request(
            method, url, headers=headers, data=body or None, allow_redirects=False, timeout=timeout
        )

    async def _taken(self, id_: int, response: aiohttp.ClientResponse, begun: list[bytes]) -> bool:
        """Whether the result has come, and its call has it. `begun` gets what was read and is for the SDK."""
        are_events = response.content_type == "text/event-stream"
        is_plain = are_events or response.content_type == "application/json"
        if response.status != 200 or not is_plain or "content-encoding" in response.headers:
            return False
        self._watch.refused = ""
        with suppress(TooLarge):
            async for part in response.content.iter_any():
                near = begun[-1][-3:] + part if begun else part
                begun.append(part)
                if sum(map(len, begun)) > self._limit:
                    return False
                if are_events and (b"\n\n" in near or b"\r\n\r\n" in near):
                    if not await self._took_events(begun):
                        return False
                    if not self._watch.awaits(id_):
                        await _drain(response)
                        return True
            return not are_events and await self._took(b"".join(begun))
        return False

    async def _took_events(self, begun: list[bytes]) -> bool:
        """Whether all whole events were results and progress that somebody awaits. `begun` keeps the rest."""
        *events, rest = b"".join(begun).replace(b"\r\n", b"\n").split(b"\n\n")
        while events:
            lines = events[0].split(b"\n")
            is_message = all(line == b"event: message" or line.startswith((b"data:", b":")) for line in lines)
            data = b"\n".join(line.removeprefix(b"data:") for line in lines if line.startswith(b"data:"))
            begun[:] = [b"\n\n".join([*events, rest])]
            if not is_message or (data and not await self._took(data)):
                return False
            del events[0]
        begun[:] = [rest]
        return True

    async def _took(self, text: bytes) -> bool:
        """Raises TooLarge."""
        await exact_json.check_cost(text, self._watch.max_values, "the answer")
        return self._watch.answered(text)


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read to the end of a stream, which follows the result: only then the connection can be used again."""
    with suppress(aiohttp.ClientError, OSError):  # a TimeoutError is one
        async with asyncio.timeout(DRAIN_S):
            async for _ in response.content.iter_any():
                pass
    response.close()


def _response(response: aiohttp.ClientResponse, begun: Sequence[bytes] = ()) -> httpx2.Response:
    return httpx2.Response(response.status, headers=list(response.raw_headers), stream=_Body(response, begun))


class _Body(httpx2.AsyncByteStream):
    """The body of a response, of which `begun` was read before."""

    def __init__(self, response: aiohttp.ClientResponse, begun: Sequence[bytes]) -> None:
        self._response = response
        self._begun = begun

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._begun:
            yield part
        with _errors_of_httpx2():
            async for part in self._response.content.iter_any():
                yield part

    async def aclose(self) -> None:
        self._response.close()


@contextmanager
def _errors_of_httpx2() -> Iterator[None]:
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx2.ConnectTimeout(str(error)) from error
    except TimeoutError as error:
        raise httpx2.ReadTimeout(str(error)) from error
    except aiohttp.ClientConnectorError as error:
        raise httpx2.ConnectError(str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise httpx2.ReadError(str(error)) from error


@asynccontextmanager
async def refused_by_http(watch: Watch) -> AsyncIterator[None]:
    """Names the status of HTTP, which the SDK's error leaves out."""
    try:
        yield
    except Exception as error:
        if watch.refused and isinstance(first_of(error), MCPError):
            raise ServerFailed(watch.refused) from None
        raise


def _refuses(status: int, is_json: bool) -> bool:
    """Whether an answer with this status is not the MCP server's: it puts JSON-RPC errors on 400 and 404, too."""
    return status in (401, 403, 407) or status >= 500 or (status == 404 and not is_json)


def _bounded(response: httpx2.Response, limit: int, max_values: int) -> Callable[[], Coroutine[Any, Any, bytes]]:
    """`response.aread`, but it breaks off above so many bytes, unpacked, or values; the SDK answers the request with
    the error."""

    async def read() -> bytes:
        found, size = [], 0
        async with aclosing(response.aiter_bytes()) as parts:
            async for part in parts:
                size += len(part)
                if size > limit:
                    raise httpx2.StreamError(ABOVE_LIMIT)
                found.append(part)
        body = b"".join(found)
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
async def _sse(parameters: MCPSSEParameters) -> AsyncIterator[Streams]:
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
                tasks.start_soon(fail, TOO_SLOW if isinstance(error, httpx2.TimeoutException) else NOT_DELIVERED)
                raise
            if response.is_error:
                tasks.start_soon(fail, f"{NOT_DELIVERED}: it {answered(response.status_code)}")
            return response

    def client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return Client(headers=headers, timeout=timeout or httpx2.Timeout(parameters.timeout), auth=auth)

    async with (
        anyio.create_task_group() as tasks,
        sse_client(
            parameters.url,
            headers=_headers(parameters.headers),
            timeout=parameters.timeout,
            sse_read_timeout=parameters.sse_read_timeout,
            httpx_client_factory=client,
        ) as streams,
    ):
        yield streams


def _limit(request: httpx2.Request, seconds: float) -> None:
    request.extensions = {**request.extensions, "timeout": httpx2.Timeout(seconds).as_dict()}


def _headers(headers: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (headers or {}).items()}
