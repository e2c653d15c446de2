"""NATS over WebSocket (`ws://`, `wss://`), for a process that reaches nats-server through a proxy for HTTP.

nats-py has a transport of its own for that. It keeps what is written until somebody waits for it, where the client here
writes and goes on; it takes a frame for a line; and it ends with a farewell that a dead peer lets it wait for.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any
from urllib.parse import ParseResult

import aiohttp
from nats.aio.transport import Transport

from smcp_bus.nats.tcp import drop


class _Socket(aiohttp.ClientWebSocketResponse):
    """aiohttp's WebSocket, and the connection under it."""

    @property
    def unwritten(self) -> int:
        """Bytes that the socket has not taken yet."""
        transport = self._under()
        return 0 if transport is None else transport.get_write_buffer_size()

    def abort(self) -> None:
        """Let go at once, without a word to the other side."""
        transport = self._under()
        if transport is not None:
            drop(transport)

    def _under(self) -> asyncio.Transport | None:
        connection = self._response.connection
        return None if connection is None else connection.transport


class WebSocketTransport(Transport):
    """What is written leaves with the next round of the loop, all of it in one frame; `close` lets go at once.

    Frames mean nothing: bytes are read as they come over TCP.
    """

    encrypted = False
    """Of `tls://` alone: `wss://` is a matter of HTTP."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._socket: _Socket | None = None
        self._sender: asyncio.Task[None] | None = None
        self._received = b""
        self._ended = False
        self._written: list[bytes | memoryview] = []
        self._waiting = 0
        """Bytes in `_written`, and in the frame that is being sent."""
        self._more = asyncio.Event()
        self._sent = asyncio.Event()

    def __bool__(self) -> bool:
        return True  # else nats-py puts its own in place of one that has not been connected yet

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """As `Transport.connect`. Raises OSError, TimeoutError: there is no such connection; says why."""
        await self._open(uri, connect_timeout, tls=None)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """As `connect`; where there is a connection it has TLS already, though nats-server's greeting asks for it."""
        if not isinstance(uri, str):
            await self._open(uri, connect_timeout, tls=ssl_context)

    async def _open(self, uri: ParseResult, timeout: float, *, tls: ssl.SSLContext | None) -> None:
        self.close()  # of an attempt that nats-server refused: nats-py forgets it as it is
        await self.wait_closed()
        # What nats-server asks for is said to it, and not to the proxy before it.
        url = uri._replace(netloc=uri.netloc.rpartition("@")[2]).geturl()
        self._session = session = aiohttp.ClientSession(ws_response_class=_Socket)
        try:
            async with asyncio.timeout(timeout):
                # Bodies have their own limit (`SMCP_MAX_PAYLOAD`).
                socket = await session.ws_connect(url, max_msg_size=0, ssl=True if tls is None else tls)
        except aiohttp.WSServerHandshakeError as error:
            raise ConnectionRefusedError(f"no WebSocket is there, but HTTP {error.status}") from error
        except aiohttp.ClientError as error:
            raise error if isinstance(error, OSError) else ConnectionRefusedError(str(error)) from error
        assert isinstance(socket, _Socket)
        self._socket = socket
        self._received, self._ended = b"", False
        self._written, self._waiting = [], 0
        self._more.clear()
        self._sent.set()
        self._sender = asyncio.create_task(self._send(socket), name="nats-websocket-sender")

    # -- out

    @property
    def stream(self) -> object:
        """Of the connection; another one after each reconnect. None before the first."""
        return self._socket

    @property
    def unwritten(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._waiting + (0 if self._socket is None else self._socket.unwritten)

    def write(self, payload: bytes | memoryview) -> None:
        """As `Transport.write`; dropped where the connection is closed."""
        if self._sender is None or self._sender.done():
            return
        self._written.append(payload)
        self._waiting += len(payload)
        self._sent.clear()
        self._more.set()

    def writelines(self, payload: Iterable[bytes | memoryview]) -> None:
        """As `write`."""
        for part in payload:
            self.write(part)

    async def drain(self) -> None:
        """Wait until the socket has room for what was written. Raises ConnectionResetError: the connection broke."""
        await self._sent.wait()
        if self._sender is None or self._sender.done():
            raise ConnectionResetError("the WebSocket is closed")

    async def _send(self, socket: _Socket) -> None:
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                frame = b"".join(self._written)
                self._written.clear()
                await socket.send_bytes(frame)  # waits where the socket has taken too little
                self._waiting -= len(frame)
                if not self._written:
                    self._sent.set()
        except (OSError, aiohttp.ClientError):
            pass  # whoever reads finds it closed
        finally:
            self._sent.set()

    # -- in

    async def read(self, buffer_size: int) -> bytes:
        """What has come, at least one byte; empty at the end. `buffer_size` does not bound it."""
        while not self._received and not self._ended:
            await self._receive()
        data, self._received = self._received, b""
        return data

    async def readline(self) -> bytes:
        """Up to the next end of a line, or to the end."""
        while b"\n" not in self._received and not self._ended:
            await self._receive()
        line, newline, self._received = self._received.partition(b"\n")
        return line + newline

    def at_eof(self) -> bool:
        """Whether all was read, and nothing more comes."""
        return self._ended and not self._received

    async def _receive(self) -> None:
        message: Any = None if self._socket is None else await self._socket.receive()
        if message is not None and message.type is aiohttp.WSMsgType.BINARY:
            self._received += message.data
        else:
            self._ended = True

    # -- its end

    def close(self) -> None:
        """Let go at once. What must arrive is flushed before."""
        self._received, self._ended = b"", True
        if self._sender is not None:
            self._sender.cancel()
        if self._socket is not None:
            self._socket.abort()

    async def wait_closed(self) -> None:
        """After `close`: wait until nothing of the connection is left here."""
        session, self._session, self._socket = self._session, None, None
        sender, self._sender = self._sender, None
        try:
            if sender is not None:
                await asyncio.wait({sender})
        finally:
            if session is not None:
                await session.close()
