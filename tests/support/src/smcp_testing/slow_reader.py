"""An Agent on a WebSocket of its own that reads only when a test calls it."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from smcp_testing.gateway_world import MIB


class SlowReader:
    """Its answers stay in the line until `read`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def join(self, office: str) -> None:
        await self._socket.send_str('40/smcp,{"max_message":67108864,"flat_errors":true}')
        await self.send(0, "server:join_office", {"role": "agent", "name": "anna", "office_id": office})
        while not (await self.read()).startswith("43/smcp,0"):
            pass

    async def send(self, number: int, event: str, payload: dict[str, Any]) -> None:
        """Send an event that is answered as `43/smcp,<number>[…]`."""
        await self._socket.send_str(f"42/smcp,{number}{orjson.dumps([event, payload]).decode()}")

    async def read(self) -> str:
        """The next packet."""
        text: str = (await self._socket.receive(timeout=20)).data
        if text == "2":
            await self._socket.send_str("3")
        return text


@asynccontextmanager
async def slow_reader(url: str, office: str) -> AsyncIterator[SlowReader]:
    """One in its office, that takes 64 MiB in a message, and of which the kernel takes little."""
    address = f"{url}/socket.io/?EIO=4&transport=websocket"
    connector = aiohttp.TCPConnector(socket_factory=small_socket)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.ws_connect(address, max_msg_size=64 * MIB) as connection,
    ):
        agent = SlowReader(connection)
        await agent.join(office)
        yield agent


def small_socket(address: tuple[Any, ...]) -> socket.socket:
    """Without a limit the kernel keeps what nobody reads, some 30 MiB on some machines."""
    found = socket.socket(family=address[0], type=address[1], proto=address[2])
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    return found
