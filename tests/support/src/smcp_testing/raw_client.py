"""A client that writes Socket.IO packets by hand, over a WebSocket: what no library would send."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import aiohttp

ANSWER_S: Final = 20.0


class RawClient:
    """Joined to the namespace. `told` has the received events: (event, payload).

    It reads all the time, as every client does: one that answers no pings is taken for gone.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.told: list[tuple[str, Any]] = []
        self.acks: dict[int, list[Any]] = {}
        self.ended: aiohttp.WSMessage | None = None
        """What ended the connection."""
        self._changed = asyncio.Condition()
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
        await self._until(lambda: number in self.acks, f"packet {number} was not acknowledged")
        arguments = self.acks.pop(number)
        assert len(arguments) == 1, arguments
        return arguments[0]

    async def asked(self, event: str) -> Any:
        """The payload of the first event of that name that it was sent, once it is there.

        Raises:
            AssertionError: the connection ended instead, or nothing came.
        """
        await self._until(lambda: any(told == event for told, _ in self.told), f"it was sent no {event}")
        return next(payload for told, payload in self.told if told == event)

    async def next(self) -> tuple[str, Any]:
        """The first event and payload of `told`, once there is one; removes it. Raises AssertionError: as `asked`."""
        await self._until(lambda: bool(self.told), "it was sent no event")
        return self.told.pop(0)

    async def end(self) -> aiohttp.WSMessage:
        """What ended the connection, once it has. Raises AssertionError: it has not."""
        await self._until(lambda: self.ended is not None, "the connection did not end", may_end=True)
        assert self.ended is not None
        return self.ended

    async def call(self, event: str, body: Any) -> Any:
        return await self.ack(await self.event(event, json.dumps(body)))

    async def join(self, role: str, name: str, office: str) -> Any:
        return await self.call("server:join_office", {"role": role, "name": name, "office_id": office})

    @contextmanager
    def not_reading(self) -> Iterator[None]:
        """Within it nothing that arrives is seen, as on a slow line."""
        transport = self._transport
        transport.pause_reading()
        try:
            yield
        finally:
            transport.resume_reading()

    async def vanish(self) -> None:
        """Break the connection off: no goodbye, no closing frame."""
        self._transport.abort()

    @property
    def _transport(self) -> asyncio.Transport:
        connection = self.socket._response.connection
        assert connection is not None
        assert connection.transport is not None
        return connection.transport

    async def read(self) -> None:
        """Read until the connection ends."""
        while (message := await self.socket.receive()).type is aiohttp.WSMsgType.TEXT:
            await self._take(message.data)
        self.ended = message
        async with self._changed:
            self._changed.notify_all()

    async def _take(self, text: str) -> None:
        if text == "2":
            with suppress(ConnectionError):
                await self.socket.send_str("3")
        elif text.startswith("43/smcp,"):
            number, bracket, rest = text[8:].partition("[")
            self.acks[int(number)] = json.loads(bracket + rest)
        elif text.startswith("42/smcp,"):
            event, payload = json.loads(text[text.index("[") :])
            self.told.append((event, payload))
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, is_so: Callable[[], bool], failure: str, *, may_end: bool = False) -> None:
        try:
            async with asyncio.timeout(ANSWER_S), self._changed:
                await self._changed.wait_for(lambda: is_so() or self.ended is not None)
        except TimeoutError:
            raise AssertionError(failure) from None
        assert may_end or is_so(), f"the connection ended: {self.ended}"


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
            client = RawClient(socket)
            reading = asyncio.create_task(client.read())
            try:
                yield client
            finally:
                await socket.close()
                await reading
    finally:
        if http is None:
            await session.close()
