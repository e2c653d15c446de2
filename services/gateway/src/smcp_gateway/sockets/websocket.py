"""Reads and writes engine.io's protocol on one WebSocket of a client, without a task or timer per message."""

import asyncio
import logging
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientConnectionResetError, WSCloseCode, WSMsgType, web
from engineio.packet import NOOP, Packet

from smcp_bus.exact_json import ONE_STEP
from smcp_gateway.sockets.packet import Assembly, Frame
from smcp_proto.errors import RateLimited
from smcp_service.http_limits import put_before

if TYPE_CHECKING:
    from smcp_gateway.sockets.engine import Engine, SendQueue

LINGER_S: Final = 5.0
"""How long a connection that was closed may take to say its last words."""
BURST: Final = 64
"""Messages of one client, pings and pongs too, that are read before others get their turn."""
FRAMES: Final = 8192
"""Frames in one read of the socket (256 KiB at most) above which a client is cut off: each costs time."""
VERY_LARGE: Final = ONE_STEP
"""Bytes from which a message to a client is announced by a NOOP: a client hears nothing while it arrives, so the time
that it allows for that begins with the message. One of a client is read in slices, and handled in a turn of its own."""
SLICE: Final = 64 * 1024
"""Bytes; a multiple of 4, so that a frame's mask fits each slice. aiohttp keeps one until all of it has come."""
AT_ONCE: Final = 64 * 1024
"""Bytes that the socket may not have taken yet where more is written: as many as it takes at a time."""

_UPGRADE, _NOOP = b"5", b"6"
_WHOLE, _PIECE = 0x81, 0x82
"""First bytes of the frames that aiohttp gets: a text message, and a piece of the text message that follows."""

_log: Final = logging.getLogger("smcp_gateway.sockets.websocket")


class WebSocketConnection:
    """What engine.io calls a WebSocket: made for a request, called once, ends with the connection."""

    def __init__(self, handler: Callable[..., Awaitable[Any]], server: "Engine") -> None:
        self._engine: Any = handler.__self__  # type: ignore[attr-defined] # a method of engine.io's socket
        self._send_queue: SendQueue = self._engine.queue
        self._server = server
        size = server.max_http_buffer_size
        self._socket = web.WebSocketResponse(
            max_msg_size=size, timeout=LINGER_S, compress=False, decode_text=False, autoping=False
        )
        self._received = 0
        self._size = 0
        self._goodbye = False
        """The client closed the WebSocket in order; python-socketio's says nothing else when it disconnects."""
        self._read_all = asyncio.Event()

    async def __call__(self, environ: dict[str, Any]) -> web.StreamResponse:
        request: web.Request = environ["aiohttp.request"]
        engine, send_queue = self._engine, self._send_queue
        try:
            await self._socket.prepare(request)
            await self._slice(request.transport)
        except ConnectionResetError:  # the client has gone before it was answered, or did not wait for that
            if not engine.connected:
                await engine.close(wait=False, abort=True, reason=self._server.reason.TRANSPORT_CLOSE)
            return web.Response()  # to nobody
        if engine.connected and not await self._upgrade():
            await self._socket.close()
            return self._socket
        engine.connected = engine.upgraded = True
        if request.transport is not None:
            send_queue.attach(request.transport, self._write_at_once)
        # In a task of its own: each message would wake the whole chain of aiohttp's and engine.io's callers, too.
        reader = asyncio.get_running_loop().create_task(self._read())
        try:
            await self._write()
        except BaseException:
            reader.cancel()
            raise
        finally:
            await asyncio.gather(reader, return_exceptions=True)
            send_queue.transport = None
            reasons = self._server.reason
            reason = reasons.CLIENT_DISCONNECT if self._goodbye else reasons.TRANSPORT_CLOSE
            await engine.close(wait=False, abort=True, reason=reason)
        await reader  # raises what ended it
        return self._socket

    async def _slice(self, transport: asyncio.Transport | None) -> None:
        """Have large frames come in slices from now on.

        Raises ConnectionResetError: the client is gone; or it did not wait, and nobody knows where its frames begin.
        """
        mark, message = secrets.token_bytes(), None
        if transport is not None:
            most, cut_off = self._server.max_http_buffer_size, transport.abort
            put_before(transport, lambda protocol: Slices(protocol, most, mark, cut_off))
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    message = await self._socket.receive()
            if message is not None and message.data == mark:
                return
            transport.abort()
        raise ConnectionResetError

    async def _upgrade(self) -> bool:
        """A client that has polled so far moves here; False: it does not say what engine.io asks for."""
        engine = self._engine
        engine.upgrading = True  # polling requests get nothing more meanwhile
        try:
            async with asyncio.timeout(self._server.ping_interval + self._server.ping_timeout):
                with self._server.bodies.of(self._send_queue.tenant) as hold:
                    if await self._text(hold) != b"2probe":
                        return False
                    await self._socket.send_str("3probe")
                    self._send_queue.put_nowait(noop())  # ends the polling request that waits
                    return await self._text(hold) == _UPGRADE
        except (TimeoutError, ConnectionError):
            return False
        finally:
            engine.upgrading = False

    async def _text(self, hold: Callable[[int], None]) -> bytes | bytearray | None:
        """The next text message; None where the connection has ended. `autoping` would answer all pings in one go."""
        whole = Assembly(self._server.max_event, hold)
        while True:
            message = await self._socket.receive()
            self._received += 1
            if self._received % BURST == 0:  # what has arrived already is read without waiting
                await asyncio.sleep(0)
            match message.type:
                case WSMsgType.TEXT | WSMsgType.BINARY as kind:
                    try:
                        whole.add(message.data)
                    except RateLimited:
                        self._send_queue.close_code = WSCloseCode.TRY_AGAIN_LATER
                        return None
                    self._size = whole.size
                    if self._size > self._server.max_http_buffer_size:
                        self._send_queue.close_code = WSCloseCode.MESSAGE_TOO_BIG
                        return None
                    if kind is WSMsgType.TEXT:  # a binary one is a piece (see `Slices`)
                        return whole.text
                case WSMsgType.PING:
                    await self._socket.pong(message.data)
                case WSMsgType.PONG:
                    pass
                case _:
                    self._goodbye = message.type is WSMsgType.CLOSE and message.data == WSCloseCode.OK
                    return None

    async def _read(self) -> None:
        engine = self._engine
        try:
            while not engine.closed:
                with self._server.bodies.of(self._send_queue.tenant) as hold:
                    if (text := await self._text(hold)) is None:
                        return
                    if len(text) >= VERY_LARGE:
                        await asyncio.sleep(0)
                    if (work := self._server.received(engine, text, self._size)) is not None:
                        await work
                    del text
        finally:
            self._read_all.set()
            self._send_queue.put_nowait(None)  # ends the writer

    def _write_at_once(self, frame: Frame) -> bool:
        transport = self._send_queue.transport
        if transport is None or self._socket.closed or transport.is_closing() or frame.size >= VERY_LARGE:
            return False
        if transport.get_write_buffer_size() > AT_ONCE:
            return False
        transport.writelines((text_header(frame.size), *frame.parts))
        return True

    async def _write(self) -> None:
        send_queue = self._send_queue
        try:
            while (packet := await send_queue.get()) is not None:
                wire = packet.wire if isinstance(packet, Frame) else packet.encode().encode()
                if len(wire) >= VERY_LARGE:
                    await self._socket.send_frame(_NOOP, WSMsgType.TEXT)
                await self._socket.send_frame(wire, WSMsgType.TEXT)
        except (ClientConnectionResetError, ConnectionError):
            _log.debug("a connection ended while it was written to")
        await self._close(send_queue.close_code)

    async def _close(self, code: int) -> None:
        """Say it, and let the client say it, too, before the TCP connection is closed: what it sends in this moment
        would reset that, and it might never hear the code."""
        if not self._read_all.is_set():
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._socket.send_frame(code.to_bytes(2), WSMsgType.CLOSE)
                    await self._read_all.wait()
        await self._socket.close(code=code)


class Slices(asyncio.Protocol):
    """Sits before aiohttp's protocol; splits each long message as it arrives. Of 32 MiB aiohttp makes three
    copies when it has come as a whole, and unmasks it: 55 ms in one go.

    A large frame, and a fragment, is one piece or more: binary messages that belong to the text message after them. The
    client's own binary messages are dropped: the protocol has none. aiohttp gets the message `mark` first, and reads it
    only if no other one has begun. It refuses a frame of more than `most` bytes by its header. `cut_off` is called if
    the client sends too many frames at once, or one that is not masked (RFC 6455, 5.1).
    """

    def __init__(self, inner: asyncio.Protocol, most: int, mark: bytes, cut_off: Callable[[], None]) -> None:
        self._most = most
        self._cut_off = cut_off
        self._head = b""
        """A header that has not come as a whole."""
        self._skip = 0
        """Bytes until the next header, or the next slice."""
        self._rest = self._last = 0
        """Of a large frame: bytes beyond the slice that comes now, and how the last slice begins."""
        self._is_text = self._passes = True
        """The message that comes now, and what is skipped."""
        self._mask = b""
        self._pass_on = inner.data_received
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        inner.data_received(text_header(len(mark)) + mark)

    def data_received(self, data: bytes) -> None:
        data, self._head = self._head + data, b""
        parts: list[bytes] = []
        begin, at, end, frames = 0 if self._passes else self._skip, self._skip, len(data), 0
        while at < end:
            if self._rest:
                size = min(self._rest, SLICE)
                self._rest -= size
                parts += data[begin:at], self._header(_PIECE if self._rest else self._last, size)
                begin, at = at, at + size
            elif (frame := _frame_at(data, at)) is None:
                self._head, end = data[at:], at
            else:
                header, size = frame
                frames += 1
                if frames > FRAMES or data[at + 1] < 0x80:
                    self._cut_off()
                    return
                first, self._passes = data[at], True
                if first != _WHOLE or size > SLICE:
                    if (kind := first & 0xF) in (WSMsgType.TEXT, WSMsgType.BINARY):
                        self._is_text = kind == WSMsgType.TEXT
                    last = (first & 0x70) | (_WHOLE if first & 0x80 else _PIECE)
                    if kind > WSMsgType.BINARY or size > self._most:
                        pass  # a control frame, or for aiohttp to refuse
                    elif not self._is_text:
                        parts.append(data[begin:at])
                        begin, self._passes = at + header + size, False
                    elif size > SLICE:
                        self._last, self._mask = last, data[at + 10 : at + header]
                        self._rest, size = size - SLICE, SLICE
                        parts += data[begin:at], self._header(_PIECE, size)
                        begin = at + header
                    else:
                        parts += data[begin:at], bytes([last])
                        begin = at + 1
                at += header + size
        self._skip = at - end
        self._pass_on(b"".join((*parts, data[begin:end])))

    def _header(self, first: int, size: int) -> bytes:
        return struct.pack("!BBQ", first, 0x80 + 127, size) + self._mask


def _frame_at(data: bytes, at: int) -> tuple[int, int] | None:
    """The bytes of a masked frame's header and its payload (RFC 6455, 5.2); None: it is not here as a whole."""
    if len(data) < at + 2:
        return None
    length = data[at + 1] & 0x7F
    extended = 2 if length == 126 else 8 if length == 127 else 0
    header = 2 + extended + 4
    if len(data) < at + header:
        return None
    return header, int.from_bytes(data[at + 2 : at + 2 + extended]) if extended else length


def text_header(length: int) -> bytes:
    """The header of a text message of `length` bytes from a server on a WebSocket (RFC 6455, 5.2)."""
    if length < 126:
        return struct.pack("!BB", 0x81, length)
    if length < 1 << 16:
        return struct.pack("!BBH", 0x81, 126, length)
    return struct.pack("!BBQ", 0x81, 127, length)


_BYTES: Final = struct.Struct("=QQ")
_BYTES_AT: Final = 120
"""Where Linux's `struct tcp_info` has `tcpi_bytes_acked` and `tcpi_bytes_received`."""
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)


def moved_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes that the peer has acknowledged plus bytes received from it; 0 on systems other than Linux."""
    connection: Any = transport.get_extra_info("socket")
    if _TCP_INFO is None or connection is None:
        return 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_AT + _BYTES.size)
    except (OSError, ValueError):  # it has ended; uvloop's says so with a ValueError
        return 0
    return sum(_BYTES.unpack_from(info, _BYTES_AT)) if len(info) >= _BYTES_AT + _BYTES.size else 0


def noop() -> Packet:
    return Packet(NOOP)  # type: ignore[no-untyped-call]
