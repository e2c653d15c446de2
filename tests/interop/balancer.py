"""What stands in front of replicas: it carries each TCP connection of a client to one of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address

from smcp_testing.tcp_proxy import Line

Choose = Callable[[str, int], int]
"""The client's address and how many connections there were before; gives the place of a replica, however large."""

Refused = Callable[[int], None]
"""Called with the index of a replica that refused a connection."""


def by_address(address: str, _: int) -> int:
    """Sticky: one address, one replica."""
    return int(ip_address(address))


def in_turn(_: str, number: int) -> int:
    """Not sticky at all."""
    return number


class Balancer:
    """Made by `balancer`."""

    def __init__(self, ports: Sequence[int], choose: Choose, refused: Refused | None = None) -> None:
        self.url = ""
        self.carried = [0] * len(ports)
        """Connections that went to each replica so far."""
        self.open = [0] * len(ports)
        """Connections that each replica has now."""
        self._lines = [Line(port) for port in ports]
        self._choose = choose
        self._refused = refused

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._lines:
            place = self._choose(writer.get_extra_info("peername")[0], sum(self.carried)) % len(self._lines)
            if await self._carries(place, reader, writer):
                return
            if self._refused is None:
                break
            self._refused(place)
        writer.transport.abort()

    async def _carries(self, place: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.carried[place] += 1
        self.open[place] += 1
        try:
            return await self._lines[place].carries(reader, writer)
        finally:
            self.open[place] -= 1

    def cut(self) -> None:
        """Break every connection that stands; new ones are carried."""
        for line in self._lines:
            line.cut()


@asynccontextmanager
async def balancer(ports: Sequence[int], choose: Choose, refused: Refused | None = None) -> AsyncIterator[Balancer]:
    """In front of these ports of 127.0.0.1.

    Args:
        refused: called with a replica that refuses a connection; then another one is chosen. None: the client fails.
    """
    front = Balancer(ports, choose, refused)
    server = await asyncio.start_server(front.carry, "127.0.0.1", 0)
    front.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield front
    finally:
        server.close()
        front.cut()
        await server.wait_closed()
