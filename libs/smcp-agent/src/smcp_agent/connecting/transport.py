"""What is beneath python-socketio: the HTTP session of a connection, its JSON, and why it could not be opened.

The session notes what python-engineio does not keep: the size limit in the open packet, the socket, and silence. The
JSON is set on the packet class of one client, which leaves other clients in the process alone. Unlike the default, it
refuses NaN and lone surrogates (to the other side the whole packet would be garbage), and packets that are too large.
"""

import asyncio
import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from socketio.packet import Packet

from smcp_agent.errors import Malformed, NotAuthenticated, RateLimited, SmcpError, TooLarge
from smcp_proto.validation import HALF

ENVELOPE_BYTES: Final = 64
"""Round the JSON of a message: the types of both packets, the namespace, an id."""
HEADROOM: Final = 64 * 1024
"""A gateway takes messages of so many bytes above its limit (`SMCP_MAX_PAYLOAD`), to answer them with 413."""


class HttpSession:
    """Makes the HTTP session of one connection, and notes what goes over it.

    Attributes:
        max_payload: bytes of the largest message that the server accepts; None as long as it has not said so.
        protocol: of the WebSocket's connection; None without one.
        unheard: whether python-engineio gave up waiting for a message: it waits as long as the server promised a ping.
    """

    def __init__(self) -> None:
        self.max_payload: int | None = None
        self.protocol: ResponseHandler | None = None
        self.unheard = False
        self._sockets: list[aiohttp.ClientWebSocketResponse] = []

    async def close(self, *, within: float) -> None:
        """Close the WebSockets that python-engineio left open, within so many seconds: aiohttp warns of them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                for socket in self._sockets:
                    await socket.close()

    def open(self) -> aiohttp.ClientSession:
        noted = self

        class WebSocket(aiohttp.ClientWebSocketResponse):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                noted._sockets.append(self)

            async def receive(self, timeout: float | None = None) -> Any:
                try:
                    message = await super().receive(timeout)
                except asyncio.CancelledError:
                    noted.unheard = True
                    raise
                noted._hear(message.data)
                return message

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._on_answer)
        trace.on_response_chunk_received.append(self._on_body)
        return aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True), ws_response_class=WebSocket, trace_configs=[trace]
        )

    async def _on_answer(self, _: object, context: object, params: aiohttp.TraceRequestEndParams) -> None:
        if params.response.status == HTTPStatus.SWITCHING_PROTOCOLS and params.response.connection is not None:
            self.protocol = params.response.connection.protocol

    async def _on_body(self, _: object, context: object, params: aiohttp.TraceResponseChunkReceivedParams) -> None:
        self._hear(params.chunk)

    def _hear(self, said: object) -> None:
        if self.max_payload is not None or not isinstance(said, str | bytes):
            return
        text = said if isinstance(said, str) else said.decode(errors="replace")
        if text.startswith("0{"):
            with suppress(ValueError):  # no open packet: python-engineio says so
                limit = json.loads(text[1:].split("\x1e", 1)[0]).get("maxPayload")
                if type(limit) is int and limit > 0:
                    self.max_payload = limit


class JsonText(str):
    """JSON already: it goes into a packet as it is."""

    __slots__ = ()


class WireJson:
    """What `socketio.packet.Packet` takes as its `json`.

    Args:
        max_bytes: of the JSON of a packet, until the server has said what it takes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._told = max_bytes

    def limit(self, max_payload: int) -> None:
        """From now on hold to what the server takes: messages of `max_payload` bytes. It cuts off who sends more."""
        self._max_bytes = max_payload - ENVELOPE_BYTES
        self._told = max_payload - HEADROOM if max_payload > HEADROOM else self._max_bytes

    def dumps(self, value: Any, **options: Any) -> str:
        """The JSON of a packet. Raises TooLarge; Malformed: `details.field` names what JSON cannot say."""
        match value:
            case [JsonText() as done]:
                text = f"[{done}]"
            case _:
                text = _dumped(value, options)
        size = len(text) if text.isascii() else len(text.encode())
        if size > self._max_bytes:
            raise TooLarge(
                f"the request has {size} bytes, the limit is {self._told}",
                details={"limit": self._told, "size": size},
            )
        return text

    def loads(self, text: str, **options: Any) -> Any:
        return json.loads(text, **options)


def _dumped(value: Any, options: dict[str, Any]) -> str:
    try:
        return _strict(value, **options)
    except (TypeError, ValueError, RecursionError) as error:
        why = HALF if isinstance(error, UnicodeEncodeError) else str(error)
        field = ""
        with suppress(RecursionError):  # what is nested too deeply, or holds itself
            field = ".".join(_fault(value[-1] if isinstance(value, list) and len(value) > 1 else value))
        message = f"{field}: {why}" if field else f"this cannot be said in JSON: {why}"
        raise Malformed(message, details={"field": field, "reason": why}) from error


def _strict(value: Any, **options: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    if not text.isascii():
        text.encode()  # a lone surrogate fails here
    return text


def _fault(value: Any) -> list[str]:
    """The path to the first part that JSON cannot say."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        try:
            _strict(part)
        except (TypeError, ValueError):
            return [str(key), *_fault(part)]
    return []


def packet_class(wire_json: WireJson) -> type[Packet]:
    """A Socket.IO packet with this JSON, in which bytes are refused instead of attached."""
    return type("WirePacket", (Packet,), {"json": wire_json, "uses_binary_events": False})


_DESCRIPTION: Final = re.compile(r'error_description="([^"]*)"')
"""In `WWW-Authenticate` (RFC 6750, 3): the body of a refused handshake is not read by aiohttp."""


def was_refused(error: BaseException) -> bool:
    """Whether an HTTP answer refused the WebSocket for good, and not for who asks: another transport may work."""
    return (
        any(isinstance(each, aiohttp.WSServerHandshakeError) and each.status < 500 for each in _chain(error))
        and refusal(error) is None
    )


def refusal(error: BaseException) -> SmcpError | None:
    """The error for a WebSocket's handshake that got 401 or 429; None for any other."""
    for each in _chain(error):
        if isinstance(each, aiohttp.WSServerHandshakeError):
            headers: Mapping[str, str] = each.headers or {}
            if each.status == NotAuthenticated.code:
                said = _DESCRIPTION.search(headers.get("WWW-Authenticate", ""))
                return NotAuthenticated(said[1] if said else "the token is not accepted")
            if each.status == RateLimited.code:
                wait = headers.get("Retry-After", "")
                details = {"retry_after_s": int(wait)} if wait.isascii() and wait.isdigit() else {}
                return RateLimited("the gateway takes no connections from here for a while", details=details)
    return None


def reason(error: BaseException) -> str | None:
    """Why the network failed, from the causes of python-socketio's "Connection error"."""
    for each in _chain(error):
        match each:
            case aiohttp.WSServerHandshakeError():
                return f"HTTP {each.status}"
            case aiohttp.ClientSSLError():  # its errno is a number of OpenSSL's
                return _tls_reason(each.os_error)
            case aiohttp.ClientConnectorError():
                number = each.os_error.errno or 0
                return os.strerror(number) if number > 0 else str(each.os_error.strerror)
            case aiohttp.ClientResponseError(status=HTTPStatus.BAD_REQUEST):  # nothing was parsed
                return "what listens there does not speak HTTP"
            case aiohttp.ServerDisconnectedError():
                return "the connection was closed without an answer"
    return None


def _tls_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    said = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return f"no TLS there ({said}); without TLS, the URL begins with http://"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
