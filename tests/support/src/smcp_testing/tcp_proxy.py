"""What stands between a client and a gateway, and can be hurt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Line:
    """Carries TCP connections to `port` of 127.0.0.1, which may change. Made by `open_line`."""

    def __init__(self, port: int) -> None:
        self.url = ""
        self.port = port
        self.carried: list[float] = []
        """When connections reached the other side (loop time)."""
        self._ends: set[asyncio.StreamWriter] = set()
        self._carrying = asyncio.Event()
        self._carrying.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not await self.carries(reader, writer):
            writer.transport.abort()

    async def carries(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Carry a connection until it ends; False at once where nobody is there now."""
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        self.carried.append(asyncio.get_running_loop().time())
        ends = {writer, up_writer}
        self._ends |= ends
        try:
            await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))
        finally:
            self._ends -= ends
        return True

    def to(self, url: str) -> str:
        """A URL of 127.0.0.1, by this line."""
        return url.rpartition("127.0.0.1:")[0] + self.url.removeprefix("http://")

    def cut(self) -> None:
        """Break every connection that stands; new ones are carried."""
        for end in self._ends:
            end.transport.abort()

    def stall(self) -> None:
        """From now on nothing passes, and nothing breaks: the other side seems to stand still."""
        self._carrying.clear()

    def resume(self) -> None:
        """After `stall`: what waited passes."""
        self._carrying.set()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._carrying.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def end(self) -> None:
        self._carrying.set()
        self.cut()


@asynccontextmanager
async def open_line(port: int) -> AsyncIterator[Line]:
    """A line to that port."""
    line = Line(port)
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()
        line.end()
        await server.wait_closed()
