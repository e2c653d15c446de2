"""A client that writes Socket.IO packets by hand, over a WebSocket: what no library would send."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

ANSWER_S: Final = 20.0


class RawClient:
    """Joined to the namespace. `told` has the received events: (event, payload)."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.told: list[tuple[str, Any]] = []
        self.acks: dict[int, list[Any]] = {}
        self._last = 0

    async def send(self, arguments: str, *, packet_id: bool = True) -> int:
        """Send an event packet; `arguments` is what stands behind its head, normally a JSON array. Returns its id."""
        self._last += 1
        await self.socket.send_str(f"42/smcp,{self._last if packet_id else ''}{arguments}")
        return self._last

    async def event(self, event: str, body: str) -> int:
        """Send an event whose argument is this text."""
        return await self.send(f"[{json.dumps(event)},{body}]")

    async def ack(self, number: int) -> Any:
        """The one argument of the acknowledgement of a packet.

        Raises:
            AssertionError: the connection ended instead, or nothing came, or not one argument.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                while number not in self.acks:
                    await self._read()
        except TimeoutError:
            raise AssertionError(f"packet {number} was not acknowledged") from None
        arguments = self.acks.pop(number)
        assert len(arguments) == 1, arguments
        return arguments[0]

    async def asked(self, event: str) -> Any:
        """The payload of the first event of that name that it was sent, once it is there."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                for told, payload in self.told:
                    if told == event:
                        return payload
                await self._read()

    async def call(self, event: str, body: Any) -> Any:
        return await self.ack(await self.event(event, json.dumps(body)))

    async def join(self, role: str, name: str, office: str) -> Any:
        return await self.call("server:join_office", {"role": role, "name": name, "office_id": office})

    async def vanish(self) -> None:
        """Break the connection off: no goodbye, no closing frame."""
        connection = self.socket._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()

    async def _read(self) -> None:
        message = await self.socket.receive()
        assert message.type is aiohttp.WSMsgType.TEXT, f"the connection ended: {message}"
        text: str = message.data
        if text == "2":
            await self.socket.send_str("3")
        elif text.startswith("43/smcp,"):
            number, bracket, rest = text[8:].partition("[")
            self.acks[int(number)] = json.loads(bracket + rest)
        elif text.startswith("42/smcp,"):
            event, payload = json.loads(text[text.index("[") :])
            self.told.append((event, payload))


@asynccontextmanager
async def raw_client(
    url: str, *, http: aiohttp.ClientSession | None = None, token: str | None = None
) -> AsyncIterator[RawClient]:
    """A connected client; closed in order afterwards, if it still is open."""
    auth = {"flat_errors": True} | ({} if token is None else {"token": token})
    session = http or aiohttp.ClientSession()
    try:
        address = f"{url}/socket.io/?EIO=4&transport=websocket"
        async with session.ws_connect(address, max_msg_size=64 * 1024 * 1024) as socket:
            await socket.receive()
            await socket.send_str("40/smcp," + json.dumps(auth))
            await socket.receive()
            yield RawClient(socket)
    finally:
        if http is None:
            await session.close()
