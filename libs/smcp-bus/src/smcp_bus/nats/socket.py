"""The socket under nats-py: the only file that touches nats-py's inside, by two names (see `carry` and `end`).

nats-py connects, greets, pings and reconnects on it (as its `Transport`, which is public). Messages of the bus's
subscriptions, answers to its pings, and objections of nats-server are taken out of the stream here. Why (nats-py 2.16):

- Messages pass through one queue and one task per subscription there; here a receiver is called where the message
  comes, so nothing of an old connection is handled after its end was reported, and an answer costs one future.
- Its `publish` may swallow a cancellation, and keeps unsent commands over a reconnect; here writing is synchronous, and
  what was not sent when the connection broke is forgotten: its senders got an error.
- It closes for good at any `-ERR` but a permission violation; here the connection is broken off, so it reconnects.
- A late PONG whose waiter has gone kills its read loop.
- It waits when it closes until a dead peer has taken what was written; here the socket is aborted.
- It sends the password to the server of a `tls://` URL even if that offers no TLS; here it does not.
"""

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, cast
from urllib.parse import ParseResult

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.transport import Transport

from smcp_bus.nats.wire import Receiver, Splitter

_PING: Final = b"PING\r\n"
_PONG: Final = b"PONG\r\n"
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""C's `struct linger`: on, and for 0 s."""


def drop(transport: asyncio.WriteTransport) -> None:
    """Close a connection at once. What the other side has not taken by now never reaches it: when the line is back
    the kernel would bring it, up to minutes after its senders got an error."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        with suppress(OSError, ValueError):  # ValueError: uvloop has closed it, unsaid, as its opening was cancelled
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


_UNACKNOWLEDGED_S: Final = 6
"""A connection is broken if its other end acknowledges nothing of what was sent for so long (seconds): that leaves time
to connect to another node of NATS and renew a lease of 10 s. A slow connection still acknowledges."""
_USER_TIMEOUT: Final[int | None] = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux alone has it
_MOST_GATHERED: Final = 64 * 1024
"""Bytes from which what is sent is written at once: to keep more saves nothing."""
_CANCEL_AGAIN_S: Final = 0.1
"""How long a cancelled task may take to end (seconds); longer says that its cancellation got lost."""


class _Line(asyncio.Protocol):
    """One TCP or TLS connection, and what came over it that nats-py has not read yet."""

    def __init__(self, take: Callable[["_Line", bytes], bytes], lost: Callable[["_Line"], None]) -> None:
        self._take = take
        self._lost = lost
        self.transport: asyncio.Transport | None = None
        self.unread = b""
        self.ended = False
        self.error: OSError | None = None
        self.arrived = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and _USER_TIMEOUT is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, 1000 * _UNACKNOWLEDGED_S)

    def data_received(self, data: bytes) -> None:
        if rest := self._take(self, data):
            self.unread += rest
            self.arrived.set()

    def eof_received(self) -> None:
        self.end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def end(self, error: Exception | None) -> None:
        if self.ended:
            return
        self.ended = True
        self.error = error if isinstance(error, OSError) else None
        self.arrived.set()
        self.writable.set()
        self._lost(self)

    async def wait(self) -> None:
        self.arrived.clear()
        await self.arrived.wait()


class Socket(Transport):
    """The transport of one connection at a time.

    Args:
        receivers: of the bus's messages, by number of the subscription.
        on_up: called when nats-py has greeted the server, and before anything else is read.
        on_down: called when the connection ended, after `up` is False.
        on_line: given each `INFO` and, once greeted, each `-ERR` (with its line break).
    """

    def __init__(
        self,
        receivers: Mapping[int, Receiver],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_line: Callable[[bytes], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._splitter = Splitter(receivers, self._is_ours, lambda: self.up)
        self._on_up = on_up
        self._on_down = on_down
        self._on_line = on_line
        self._line: _Line | None = None
        self._greeted = False
        self._encrypted = False
        self._pongs: deque[asyncio.Future[bool] | None] = deque()
        """The waiters for outstanding PONGs, in order; None is nats-py."""
        self._gathered: list[bytes | memoryview] = []
        """What is written at the end of this round of the loop, to the present connection."""
        self._gathered_bytes = 0
        self._later: list[tuple[int, Callable[[], None]]] = []
        """Where in it, and what to call for what is written there."""
        self.server: ParseResult | None = None
        """The URL of the server that is connected to, or that is tried."""
        self.up = False

    def carry(self, client: Client) -> None:
        """Have nats-py use this socket. There is no public way to give it a transport."""
        client._transport = self  # noqa: SLF001

    async def end(self, client: Client) -> None:
        """Close nats-py's connection for good, and end its reconnecting.

        That may go on after nats-py's own `close`: its cancellation gets lost in `wait_for` (Python 3.11), and once it
        is connected it takes itself for open again.
        """
        self.close()  # first: nats-py would wait for a dead peer to take what is left to write
        await client.close()
        while (task := client._reconnection_task) is not None:  # noqa: SLF001 -- there is no public way to end it
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_AGAIN_S)
            self.close()
            await client.close()
            if task.done():
                _ = task.cancelled() or task.exception()  # of two that met: taken note of
                if client._reconnection_task is task:  # noqa: SLF001
                    break

    def __bool__(self) -> bool:
        return True  # else nats-py puts its own in place of one that has not been connected yet

    # -- for the bus

    @property
    def unwritten(self) -> int:
        line = self._line
        return 0 if line is None or line.ended or line.transport is None else line.transport.get_write_buffer_size()

    def send(self, *parts: bytes | memoryview) -> None:
        """Write; it leaves with this round of the loop, together with all else: each write of its own is a system call
        that wakes nats-server. Dropped where there is no connection."""
        line = self._line
        if line is None or line.ended or line.transport is None:
            return
        first = not self._gathered
        self._gathered += parts
        self._gathered_bytes += sum(map(len, parts))
        if self._gathered_bytes >= _MOST_GATHERED:
            self._write_gathered()
        elif first:
            self._loop.call_soon(self._write_gathered)

    def send_later(self, call: Callable[[], None]) -> None:
        if not self._gathered and not self._later:
            self._loop.call_soon(self._write_gathered)
        self._later.append((len(self._gathered), call))

    def _write_gathered(self) -> None:
        if self._later:
            later, self._later = self._later, []
            gathered, self._gathered = self._gathered, []
            start = 0
            for at, call in later:
                self._gathered += gathered[start:at]
                call()
                start = at
            self._gathered += gathered[start:]
        parts, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not parts or self._line is None or self._line.transport is None:
            return
        try:
            self._line.transport.writelines(parts)
        except RuntimeError:  # uvloop raises it for a closed socket before it reports the end
            self.close()

    def ping(self) -> "asyncio.Future[bool]":
        """True when nats-server has taken all that was sent before, False if the connection broke."""
        pong: asyncio.Future[bool] = self._loop.create_future()
        self._pongs.append(pong)
        self.send(_PING)
        return pong

    async def wait_writable(self) -> bool:
        """Wait until the kernel has taken most of what was written; False where the connection broke meanwhile."""
        line = self._line
        if line is None:
            return False
        if line.writable.is_set():
            await asyncio.sleep(0)  # uvloop writes, and pauses its writers, at the end of the round
        await line.writable.wait()
        return line is self._line and not line.ended

    def _take(self, line: _Line, data: bytes) -> bytes:
        if line is not self._line:
            return b""
        return self._splitter.take(data) if self._greeted else data

    def _is_ours(self, line: bytes) -> bool:
        if line == _PONG:
            pong = self._pongs.popleft() if self._pongs else None
            if pong is not None and not pong.done():
                pong.set_result(True)
            return pong is not None
        if line.startswith(b"INFO "):
            self._on_line(line)
        elif line.startswith(b"-ERR") and self._greeted:
            self._on_line(line)
            return True
        return False

    def _lost(self, line: _Line) -> None:
        if line is not self._line:
            return
        self._splitter.forget()
        self._gathered, self._gathered_bytes = [], 0
        pongs, self._pongs = self._pongs, deque()
        for pong in pongs:
            if pong is not None and not pong.done():
                pong.set_result(False)
        if self.up:
            self.up = False
            self._on_down()

    # -- for nats-py: `Transport`

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self.close()  # of an attempt that nats-server refused: nats-py forgets it as it is
        self.server, self._encrypted, self._greeted = uri, False, False
        self._line = line = _Line(self._take, self._lost)
        assert uri.hostname is not None
        assert uri.port is not None
        async with asyncio.timeout(connect_timeout):
            # Resolved before: uvloop logs the failure of a resolution that was cancelled inside `create_connection`.
            found = await self._loop.getaddrinfo(uri.hostname, uri.port, type=socket.SOCK_STREAM)
            error = OSError(f"{uri.hostname} has no address")
            for *_, address in found:
                try:
                    await self._loop.create_connection(lambda: line, *address[:2])
                except OSError as failed:
                    error = failed
                else:
                    return
            raise error

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        assert self._line is not None, "`connect` comes first"
        assert self._line.transport is not None
        bare = self._line.transport
        self._line = line = _Line(self._take, self._lost)
        line.transport = bare
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport = await self._loop.start_tls(bare, line, ssl_context, server_hostname=name)
        if transport is None:
            raise ConnectionResetError("the connection ended while TLS was begun")
        line.transport, self._encrypted = transport, True

    def write(self, payload: bytes) -> None:
        if payload.startswith(b"CONNECT ") and not self._encrypted:
            if self.server is not None and self.server.scheme == "tls":
                raise nats_errors.Error("nats: the server has no TLS, and its URL begins with tls://")
        elif payload == _PING:
            self._pongs.append(None)
        self.send(payload)

    def writelines(self, payload: Iterable[bytes]) -> None:
        for part in payload:
            self.write(part)

    async def drain(self) -> None:
        if self._line is not None:
            await self._line.writable.wait()

    async def read(self, buffer_size: int) -> bytes:
        line = self._line
        if line is None:
            return b""
        if not self._greeted:
            # nats-py's read loop begins: the server was greeted, and nats-py's own subscriptions are there again.
            self._greeted = True
            came, line.unread = line.unread, b""
            if not line.ended:
                self.up = True
                self._on_up()
            if came:
                line.data_received(came)
        while not line.unread and not line.ended:
            await line.wait()
        if not line.unread and line.error is not None:
            raise line.error
        data, line.unread = line.unread, b""
        return data

    async def readline(self) -> bytes:
        line = self._line
        if line is None:
            return b""
        while b"\n" not in line.unread and not line.ended:
            await line.wait()
        text, newline, line.unread = line.unread.partition(b"\n")
        self._is_ours(text + newline)
        return text + newline

    def at_eof(self) -> bool:
        return self._line is None or (self._line.ended and not self._line.unread)

    def close(self) -> None:
        line = self._line
        if line is not None and line.transport is not None:
            drop(line.transport)
            line.end(None)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)  # aborted, it is closed with the next round of the loop
