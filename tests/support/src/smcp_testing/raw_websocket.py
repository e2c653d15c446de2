"""A client's end of a WebSocket by hand: it reads late, and writes frames as a test wants them."""

import asyncio
import os
import socket
import struct
from typing import Final

KIB: Final = 1024
CONTINUATION, TEXT, CLOSE = 0, 1, 8
PING, PONG = b"2", b"3"
"""Of engine.io."""


class RawWebSocket:
    """The client's end of a WebSocket: nothing is read from the TCP connection but when `frame` asks for it."""

    def __init__(self, tcp: socket.socket) -> None:
        self._tcp = tcp
        self._loop = asyncio.get_running_loop()
        self._read = bytearray()

    async def connect(self, host: str, port: int) -> None:
        await self._loop.sock_connect(self._tcp, (host, port))
        request = (
            f"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await self._loop.sock_sendall(self._tcp, request.encode())
        while b"\r\n\r\n" not in self._read:
            assert await self._more(), "the gateway hung up"
        head, _, rest = bytes(self._read).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        self._read = bytearray(rest)

    async def frame(self) -> tuple[int, bytes] | None:
        """Opcode and payload of the next frame; None at the end of the connection."""
        if not await self._have(2):
            assert not self._read
            return None
        first, length = self._read[0], self._read[1]
        assert first & 0xF0 == 0x80, "whole, and with no extension"
        assert length < 128, "a server masks nothing"
        start = 2
        if length == 126:
            start = 4
            assert await self._have(start)
            (length,) = struct.unpack_from("!H", self._read, 2)
            assert length > 125, "the shortest form is the one to use"
        elif length == 127:
            start = 10
            assert await self._have(start)
            (length,) = struct.unpack_from("!Q", self._read, 2)
            assert length > 0xFFFF, "the shortest form is the one to use"
        assert await self._have(start + length)
        payload = bytes(self._read[start : start + length])
        del self._read[: start + length]
        return first & 0x0F, payload

    async def message(self) -> bytes:
        """The next text message, within 10 s; pings are answered."""
        async with asyncio.timeout(30):
            while True:
                frame = await self.frame()
                assert frame is not None, "the gateway hung up"
                opcode, payload = frame
                assert opcode == TEXT
                if payload != PING:
                    return payload
                await self.send(TEXT, PONG)

    async def send(self, opcode: int, payload: bytes) -> None:
        await self.write(client_frame(opcode, payload))

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._loop.sock_sendall(self._tcp, data)

    async def _have(self, size: int) -> bool:
        while len(self._read) < size:
            if not await self._more():
                return False
        return True

    async def _more(self) -> bool:
        part = await asyncio.wait_for(self._loop.sock_recv(self._tcp, 256 * KIB), 15)
        self._read += part
        return bool(part)


def client_frame(opcode: int, payload: bytes, *, last: bool = True) -> bytes:
    """A frame as clients send it, masked (RFC 6455, 5.2). `last`: of its message."""
    size = len(payload)
    if size < 126:
        length = struct.pack("!B", 0x80 | size)
    elif size < 1 << 16:
        length = struct.pack("!BH", 0x80 | 126, size)
    else:
        length = struct.pack("!BQ", 0x80 | 127, size)
    mask = os.urandom(4)
    masked = (int.from_bytes(payload) ^ int.from_bytes((mask * (size // 4 + 1))[:size])).to_bytes(size)
    return bytes((last << 7 | opcode,)) + length + mask + masked
