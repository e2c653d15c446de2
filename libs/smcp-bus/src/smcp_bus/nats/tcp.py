"""NATS over TCP (`nats://`, `tls://`)."""

import asyncio
import ssl
from typing import Final
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport

READ: Final = 1024 * 1024
"""Bytes that are read at a time, at most."""


class AbortingTransport(TcpTransport):
    """A TCP transport whose `close` lets go at once, and that reads as much as has come.

    What must arrive is flushed before closing. nats-py reads 32 KiB at a time, and the stream pauses the socket above
    twice that: a chunk of half a MiB would cost dozens of system calls.
    """

    encrypted = False
    """Whether the connection that stands, or that is made, speaks TLS by now."""

    def __bool__(self) -> bool:
        return True  # else nats-py puts its own in place of one that has not been connected yet

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """As `Transport.connect`."""
        self.close()  # of an attempt that nats-server refused: nats-py forgets it as it is
        self.encrypted = False
        await super().connect(uri, max(buffer_size, READ), connect_timeout)

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
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        self.encrypted = True

    @property
    def unwritten(self) -> int:
        """Bytes that the socket has not taken yet."""
        return 0 if self._io_writer is None else self._io_writer.transport.get_write_buffer_size()

    def close(self) -> None:
        """As `Transport.close`."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def wait_closed(self) -> None:
        """As `Transport.wait_closed`."""
        # Aborted, it is closed with the next round of the loop. The stream's own future is not for us: nats-py awaits
        # it in two tasks, and where one is cancelled the other is as well.
        await asyncio.sleep(0)
