"""A line between a client and a gateway that carries only so many bytes a second."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_PIECE = 32 * 1024
_BUFFER = 64 * 1024
"""What the system keeps of the line on its way, so that who writes notices how slow it is."""


@asynccontextmanager
async def slow_line(url: str, *, down: float, up: float) -> AsyncIterator[str]:
    """The URL under which the gateway at `url` is reached over the line; its bytes a second from and to the gateway."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    address = (parts.hostname, parts.port or 80)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outgoing = _narrow(socket.socket())
        outgoing.setblocking(False)
        await asyncio.get_running_loop().sock_connect(outgoing, address)
        behind, ahead = await asyncio.open_connection(sock=outgoing, limit=_PIECE)
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(behind, writer, down))
            group.create_task(_pump(reader, ahead, up))

    listener = _narrow(socket.create_server(("127.0.0.1", 0)))
    server = await asyncio.start_server(carry, sock=listener, limit=_PIECE)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()


def _narrow(end: socket.socket) -> socket.socket:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return end


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float) -> None:
    loop = asyncio.get_running_loop()
    free = loop.time()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
            free = max(free, loop.time() - 0.1) + len(data) / rate
            await asyncio.sleep(max(free - loop.time(), 0))
    writer.close()
