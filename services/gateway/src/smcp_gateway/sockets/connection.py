"""One WebSocket of a client: engine.io's protocol on aiohttp, read and written without a task or timer per message."""

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from aiohttp import ClientConnectionResetError, WSCloseCode, WSMsgType, web
from aiohttp._websocket.reader import WebSocketDataQueue
from aiohttp.http import WebSocketReader
from engineio import packet as engine_packet

from smcp_gateway.sockets.outbox import Outbox
from smcp_gateway.sockets.packet import Frame

LINGER_S: Final = 5.0
"""How long a connection that was closed may take to say its last words."""

BURST: Final = 64
"""Messages of one client that are read before others get their turn."""

HERALDED: Final = 1024 * 1024
"""Bytes from which a message is announced. A client that knows engine.io alone hears nothing while it arrives, and
takes the gateway for gone when that lasts: so the time that it allows begins with it, not with the last ping."""

AT_ONCE: Final = 64 * 1024
"""Bytes that the socket may not have taken yet where more is written: as many as it takes at a time."""

_CLOSE, _PONG, _MESSAGE, _UPGRADE, _NOOP = b"1", b"3", b"4", b"5", b"6"

_log: Final = logging.getLogger("smcp_gateway.sockets.connection")


class EngineSocket(Protocol):
    """What is used of engine.io's socket."""

    sid: str
    queue: Outbox
    connected: bool
    upgrading: bool
    upgraded: bool
    closed: bool

    def schedule_ping(self) -> None:
        """Send the next ping when it is time."""

    async def close(self, *, wait: bool, abort: bool, reason: str) -> None:
        """End the session. `wait`: after what waits was written; `abort`: without telling the client."""


class EngineServer(Protocol):
    """What a connection needs of its server."""

    max_http_buffer_size: int
    ping_timeout: float
    ping_interval: float
    tcp: dict[str, asyncio.Transport]
    reason: Any

    async def message(self, sid: str, text: bytes, start: int) -> None:
        """A Socket.IO packet came; it begins at `start`."""

    def message_at_once(self, sid: str, text: bytes, start: int) -> bool:
        """As `message`, for a packet that needs no waiting; False: it is none."""


class Connection:
    """What engine.io calls a WebSocket: made for a request, called once, ends with the connection."""

    def __init__(self, handler: Callable[..., Awaitable[Any]], server: EngineServer) -> None:
        self._engine: EngineSocket = handler.__self__  # type: ignore[attr-defined] # a method of engine.io's socket
        self._server = server
        self._socket = ArrivingWebSocket(max_msg_size=server.max_http_buffer_size, timeout=LINGER_S, compress=False)
        self._transport: asyncio.Transport | None = None
        self._goodbye = False
        """The client closed the WebSocket in order; python-socketio's says nothing else when it disconnects."""
        self._read_all = asyncio.Event()
        """Nothing is read from the client any more."""
        self._taken = 0
        """Messages that were taken where they arrived."""

    async def __call__(self, environ: dict[str, Any]) -> web.StreamResponse:
        """Serve the WebSocket until it ends; engine.io calls this for the request that opens it."""
        request: web.Request = environ["aiohttp.request"]
        engine, sid = self._engine, self._engine.sid
        try:
            await self._socket.prepare(request)
        except ConnectionResetError:  # the client has gone before it was answered
            if not engine.connected:
                await engine.close(wait=False, abort=True, reason=self._server.reason.TRANSPORT_CLOSE)
            return web.Response()  # to nobody
        if engine.connected and not await self._upgrade():
            await self._socket.close()
            return self._socket
        engine.connected = engine.upgraded = True
        if request.transport is not None:
            self._transport = self._server.tcp[sid] = request.transport
            engine.queue.at_once = self._write_at_once
        writer = asyncio.get_running_loop().create_task(self._write())
        try:
            await self._read()
        finally:
            self._read_all.set()
            engine.queue.put_nowait(None)  # ends the writer
            await writer
            self._server.tcp.pop(sid, None)
            reasons = self._server.reason
            reason = reasons.CLIENT_DISCONNECT if self._goodbye else reasons.TRANSPORT_CLOSE
            await engine.close(wait=False, abort=True, reason=reason)
        return self._socket

    async def _upgrade(self) -> bool:
        """A client that has polled so far moves here; False: it does not say what engine.io asks for."""
        engine = self._engine
        engine.upgrading = True  # polling requests get nothing more meanwhile
        try:
            async with asyncio.timeout(self._server.ping_interval + self._server.ping_timeout):
                if await self._receive() != b"2probe":
                    return False
                await self._socket.send_str("3probe")
                noop = engine_packet.Packet(engine_packet.NOOP)  # type: ignore[no-untyped-call]
                engine.queue.put_nowait(noop)  # ends the polling request that waits
                return await self._receive() == _UPGRADE
        except (TimeoutError, ConnectionError):
            return False
        finally:
            engine.upgrading = False

    async def _receive(self) -> bytes | None:
        """The next text message; None where the connection has ended. Binary ones are none of the protocol's."""
        while True:
            message = await self._socket.receive()
            if message.type is WSMsgType.TEXT:
                data: bytes = message.data
                return data
            if message.type is not WSMsgType.BINARY:
                self._goodbye = message.type is WSMsgType.CLOSE and message.data == WSCloseCode.OK
                return None

    def _take(self, text: bytes) -> bool:
        """A message has arrived, and nothing that came before it waits."""
        engine = self._engine
        self._taken += 1
        if engine.closed or self._taken % BURST == 0:  # this one, and what has arrived behind it, is read in turns
            return False
        match text[:1]:
            case b"4":
                try:
                    return self._server.message_at_once(engine.sid, text, 1)
                except Exception:  # noqa: BLE001 -- aiohttp would close the connection, and say nothing
                    _log.exception("a message could not be taken")
                    return False
            case b"3":
                engine.schedule_ping()
                return True
            case _:
                return False

    async def _read(self) -> None:
        engine = self._engine
        read = 0
        while not engine.closed:
            self._socket.take_with(self._take)
            try:
                text = await self._receive()
            finally:
                self._socket.take_with(None)
            if text is None:
                return
            read += 1
            if read % BURST == 0:  # what has arrived already is read without waiting
                await asyncio.sleep(0)
            match text[:1]:
                case b"4":
                    await self._server.message(engine.sid, text, 1)
                case b"3":
                    engine.schedule_ping()
                case b"1":
                    await engine.close(wait=False, abort=True, reason=self._server.reason.CLIENT_DISCONNECT)
                case _:
                    _log.debug("a packet that is not engine.io's was ignored")

    def _write_at_once(self, frames: Sequence[Frame]) -> bool:
        """Write frames without a task's turn; False where something else has to go first."""
        transport = self._transport
        if transport is None or self._socket.closed or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > AT_ONCE:
            return False
        if len(frames) == 1:  # often large: it is not copied
            frame = frames[0]
            if frame.size >= HERALDED:
                return False
            transport.writelines((text_header(frame.size), *frame.parts))
            return True
        if any(frame.size >= HERALDED for frame in frames):
            return False
        transport.write(b"".join([part for frame in frames for part in (text_header(frame.size), frame.wire)]))
        return True

    async def _write(self) -> None:
        outbox = self._engine.queue
        try:
            while (packet := await outbox.get()) is not None:
                wire = packet.wire if isinstance(packet, Frame) else packet.encode().encode()
                if len(wire) >= HERALDED:
                    await self._socket.send_frame(_NOOP, WSMsgType.TEXT)
                await self._socket.send_frame(wire, WSMsgType.TEXT)
        except (ClientConnectionResetError, ConnectionError):
            _log.debug("a connection ended while it was written to")
        await self._close(outbox.last_word)

    async def _close(self, code: int) -> None:
        """Say it, and let the client say it, too, before the TCP connection is closed: what it sends in this moment
        would reset that, and it might never hear the code."""
        if not self._read_all.is_set():
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._socket.send_frame(code.to_bytes(2), WSMsgType.CLOSE)
                    await self._read_all.wait()
        await self._socket.close(code=code)


def text_header(length: int) -> bytes:
    """What stands before a text message of `length` bytes from a server on a WebSocket (RFC 6455, 5.2)."""
    if length < 126:
        return struct.pack("!BB", 0x81, length)
    if length < 1 << 16:
        return struct.pack("!BBH", 0x81, 126, length)
    return struct.pack("!BBQ", 0x81, 127, length)


QUEUE_BYTES: Final = 64 * 1024
"""From twice as much on nothing is read from the client until its messages are taken from the queue."""

Take = Callable[[bytes], bool]
"""Given a text message; False: it is to be received in its turn. Must not block."""


class _Queue(WebSocketDataQueue):
    """aiohttp's queue of messages, but for those that are taken as they arrive."""

    take: Take | None = None

    def offer(self, take: Take | None) -> None:
        """See `ArrivingWebSocket.take_with`."""
        self.take = None if self._buffer else take

    def feed_data(self, data: Any, size: int) -> None:
        take = self.take
        if take is None or data.type is not WSMsgType.TEXT or not take(data.data):
            # It comes first. aiohttp goes on with what it held back while it gives out this one, and its queue is empty
            # by then.
            self.take = None
            super().feed_data(data, size)


class ArrivingWebSocket(web.WebSocketResponse):
    """As aiohttp's, for text messages that are not decoded."""

    def __init__(self, **options: Any) -> None:
        super().__init__(decode_text=False, **options)

    def take_with(self, take: Take | None) -> None:
        """Offer text messages to `take` before they are put into the queue: as long as that is empty."""
        assert isinstance(self._reader, _Queue)
        self._reader.offer(take)

    def _post_start(self, request: web.BaseRequest, protocol: str | None, writer: Any) -> None:
        self._ws_protocol = protocol
        self._writer = writer
        assert self._loop is not None
        self._reader = _Queue(request.protocol, QUEUE_BYTES, loop=self._loop)
        self._parser = WebSocketReader(
            self._reader, self._max_msg_size, compress=bool(self._compress), decode_text=False
        )
        request.protocol.set_parser(self._parser)
        request.protocol.keep_alive(False)


SLOWEST: Final = 16 * 1024
"""Bytes a second; a line that moves less stands still."""

_BYTES: Final = struct.Struct("=QQ")
_BYTES_AT: Final = 120
"""Where Linux's `struct tcp_info` has `tcpi_bytes_acked` and `tcpi_bytes_received`."""
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)


class Progress:
    """What has moved on the connections that are looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def moves(self, client: str, transport: asyncio.BaseTransport, now: float) -> bool:
        """Whether at least `SLOWEST` moved since the last look at it; the first look sees nothing.

        Args:
            now: seconds.
        """
        moved = moved_bytes(transport)
        before = self._seen.get(client)
        self._seen[client] = (now, moved)
        return before is not None and moved - before[1] >= SLOWEST * max(now - before[0], 0.1)

    def forget(self, client: str) -> None:
        """It is not looked at any more: the next look is a first one. Idempotent."""
        self._seen.pop(client, None)


def moved_bytes(transport: asyncio.BaseTransport) -> int:
    """What the peer has acknowledged and what came from it; 0 where the system does not say (it is Linux that does)."""
    connection: Any = transport.get_extra_info("socket")
    if _TCP_INFO is None or connection is None:
        return 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_AT + _BYTES.size)
    except (OSError, ValueError):  # it has ended; uvloop's says so with a ValueError
        return 0
    return sum(_BYTES.unpack_from(info, _BYTES_AT)) if len(info) >= _BYTES_AT + _BYTES.size else 0
