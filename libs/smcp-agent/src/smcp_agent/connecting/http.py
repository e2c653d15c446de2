"""The HTTP session under a connection, and why a connection could not be opened.

The session notes what python-engineio does not keep: the size limit in the open packet, the socket, and silence.
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

from smcp_agent.errors import NotAuthenticated, RateLimited, SmcpError


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
        """The session for the connection."""
        hear, opened, gave_up = self._hear, self._sockets.append, self._gave_up

        class WebSocket(aiohttp.ClientWebSocketResponse):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                opened(self)

            async def receive(self, timeout: float | None = None) -> Any:
                try:
                    message = await super().receive(timeout)
                except asyncio.CancelledError:
                    gave_up()
                    raise
                hear(message.data)
                return message

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._on_answer)
        trace.on_response_chunk_received.append(self._on_body)
        return aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True),
            ws_response_class=WebSocket,
            trace_configs=[trace],
        )

    async def _on_answer(self, _: object, context: object, params: aiohttp.TraceRequestEndParams) -> None:
        if params.response.status == HTTPStatus.SWITCHING_PROTOCOLS and params.response.connection is not None:
            self.protocol = params.response.connection.protocol

    async def _on_body(self, _: object, context: object, params: aiohttp.TraceResponseChunkReceivedParams) -> None:
        self._hear(params.chunk)

    def _gave_up(self) -> None:
        self.unheard = True

    def _hear(self, said: object) -> None:
        if self.max_payload is not None or not isinstance(said, str | bytes):
            return
        text = said if isinstance(said, str) else said.decode(errors="replace")
        if not text.startswith("0{"):
            return
        try:
            opened = json.loads(text[1:].split("\x1e", 1)[0])
        except ValueError:
            return  # no open packet: python-engineio says so
        limit = opened.get("maxPayload")
        if type(limit) is int and limit > 0:
            self.max_payload = limit


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
        if isinstance(each, aiohttp.WSServerHandshakeError):
            return f"HTTP {each.status}"
        if isinstance(each, aiohttp.ClientSSLError):  # its errno is a number of OpenSSL's
            return _tls_reason(each.os_error)
        if isinstance(each, aiohttp.ClientConnectorError):
            number = each.os_error.errno or 0
            return os.strerror(number) if number > 0 else str(each.os_error.strerror)
        if (
            isinstance(each, aiohttp.ClientResponseError) and each.status == HTTPStatus.BAD_REQUEST
        ):  # nothing was parsed
            return "what listens there does not speak HTTP"
        if isinstance(each, aiohttp.ServerDisconnectedError):
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
