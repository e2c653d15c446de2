"""NATS over TCP (`nats://`, `tls://`)."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport

READ: Final = 1024 * 1024
"""Bytes that are read at a time, at most."""
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""C's `struct linger`: on, and for 0 s."""


Take = Callable[[bytes], bytes]
"""Given what came, takes from its beginning what it can; returns the rest. It must neither block nor raise."""


def drop(transport: asyncio.WriteTransport) -> None:
    """Close a connection at once. What the other side has not taken by now never reaches it: when the line is back
    the kernel would bring it, up to minutes after its senders were told that it is lost."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


class _Reader(asyncio.StreamReader):
    """A stream of which `take` is given first what comes while nothing before it is unread.

    What is taken so costs no copy, no future and no turn of the task that reads.
    """

    def __init__(self, take: Take, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit, loop)
        self._take = take
        self._unread = 0

    def feed_data(self, data: bytes) -> None:  # type: ignore[override] # what a transport gives
        if not self._unread:
            data = self._take(data)
        self._unread += len(data)
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self._unread -= len(data)
        return data

    async def readline(self) -> bytes:
        line = await super().readline()
        self._unread -= len(line)
        return line


class _TlsProtocol(asyncio.StreamReaderProtocol):
    def eof_received(self) -> bool:
        super().eof_received()
        return False  # TLS has no half-closed connection; asyncio warns where a protocol asks for one


class AbortingTransport(TcpTransport):
    """A TCP transport whose `close` lets go at once, and that reads as much as has come.

    What must arrive is flushed before closing. nats-py reads 32 KiB at a time, and the stream pauses the socket above
    twice that: a chunk of half a MiB would cost dozens of system calls.

    Args:
        take: see `Take`; nats-py reads the rest.
    """

    encrypted = False
    """Whether the connection that stands, or that is made, speaks TLS by now."""

    def __init__(self, take: Take) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._take = take
        self._loop = asyncio.get_running_loop()

    def __bool__(self) -> bool:
        return True  # else nats-py puts its own in place of one that has not been connected yet

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """As `Transport.connect`."""
        self.close()  # of an attempt that nats-server refused: nats-py forgets it as it is
        self.encrypted = False
        reader, protocol = self._receiving(max(buffer_size, READ))
        assert uri.hostname is not None
        assert uri.port is not None
        async with asyncio.timeout(connect_timeout):
            transport, _ = await self._loop.create_connection(lambda: protocol, uri.hostname, uri.port)
        self._io_reader = self._bare_io_reader = reader
        self._io_writer = self._bare_io_writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def read(self, buffer_size: int) -> bytes:
        """As `Transport.read`."""
        data: bytes = await super().read(max(buffer_size, READ))
        return data

    @property
    def stream(self) -> object:
        """Of the connection; another one after each reconnect. None before the first."""
        return self._io_writer

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """As `Transport.connect_tls`."""
        assert self._io_writer is not None, "`connect` comes first"
        reader, protocol = self._receiving(max(buffer_size, READ), _TlsProtocol)
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            bare = self._io_writer.transport
            transport = await self._loop.start_tls(bare, protocol, ssl_context, server_hostname=name)
        if transport is None:
            raise ConnectionResetError("the connection ended while TLS was begun")
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)
        self.encrypted = True

    def _receiving(
        self, limit: int, kind: type[asyncio.StreamReaderProtocol] = asyncio.StreamReaderProtocol
    ) -> tuple[asyncio.StreamReader, asyncio.StreamReaderProtocol]:
        reader = _Reader(self._take, limit, self._loop)
        return reader, kind(reader, loop=self._loop)

    @property
    def unwritten(self) -> int:
        """Bytes that the socket has not taken yet."""
        return 0 if self._io_writer is None else self._io_writer.transport.get_write_buffer_size()

    def close(self) -> None:
        """As `Transport.close`."""
        if self._io_writer is not None:
            drop(self._io_writer.transport)

    async def wait_closed(self) -> None:
        """As `Transport.wait_closed`."""
        # Aborted, it is closed with the next round of the loop. The stream's own future is not for us: nats-py awaits
        # it in two tasks, and where one is cancelled the other is as well.
        await asyncio.sleep(0)
