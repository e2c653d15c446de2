"""The queue of what waits to be written to one client: bounded in bytes, and handed out in portions."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from aiohttp import WSCloseCode
from engineio.packet import NOOP, PING

from smcp_gateway.sockets.packet import Frame

PORTION: Final = 16
"""Packets that the writer gets at once: clients refuse a polling response of more than 16 packets."""
ROOMY: Final = 1024 * 1024
"""Bytes in the outbox up to which a large message may join them."""
_SIGNS: Final = (PING, NOOP)
"""Packets that only say that the gateway is there. They overtake what waits: behind large messages they would come too
late for a client on a slow line."""


class Outbox(asyncio.Queue[Any]):
    """engine.io's queue of packets to one client, and what the gateway knows of the client's connection.

    `put` never waits: it takes small messages (pings, notifications) until `limit` bytes wait. Then the client is cut
    off, since it does not read. Before a large message is put, `room` is awaited.

    Args:
        limit: bytes.
        cut_off: called once, when the limit is passed.
    """

    def __init__(self, limit: int, cut_off: "Callable[[Outbox], None]") -> None:
        super().__init__()
        self._limit = limit
        self._cut_off: Callable[[Outbox], None] | None = cut_off
        self._handed_out = 0
        self._handed_bytes = 0
        self._roomy = asyncio.Event()
        self._roomy.set()
        self._reader_waits = False
        self.bytes = 0
        self.at_once: Callable[[Frame], bool] | None = None
        """Writes a frame before which nothing waits; False: the frame has to wait here."""
        self.close_code: int = WSCloseCode.OK
        """Closes the WebSocket when all has been written."""
        self.transport: asyncio.Transport | None = None
        """Of the client's WebSocket."""
        self.moved: tuple[float, int] | None = None
        """When the line of a late client was looked at (monotonic), and how many bytes had moved on it by then."""

    @property
    def held(self) -> int:
        """Bytes that wait, and those of the portion that the writer has and may not have written yet."""
        return self.bytes + self._handed_bytes

    @property
    def unsent(self) -> int:
        """`held`, and what was written that the socket has not taken yet."""
        return self.held + (0 if self.transport is None else self.transport.get_write_buffer_size())

    @property
    def has_room(self) -> bool:
        """Whether a large message may be put: the client has read most of what was sent before, or is gone."""
        return self.bytes <= ROOMY or self._cut_off is None

    async def room(self) -> None:
        while not self.has_room:
            await self._roomy.wait()  # another large message may have gone first: look again

    def release(self) -> None:
        """The client is gone: nobody waits for room any more, and the writer ends."""
        self._cut_off = None
        self._roomy.set()
        self.put_nowait(None)

    def put_nowait(self, item: Any) -> None:
        at_once = self.at_once
        if at_once is not None and self._reader_waits and not self._queue and isinstance(item, Frame) and at_once(item):
            return
        super().put_nowait(item)

    async def get(self) -> Any:
        """For the writer: the first packet of its next portion. What it had before has been written."""
        self._handed_out = self._handed_bytes = 0
        self._reader_waits = True
        try:
            return await super().get()
        finally:
            self._reader_waits = False

    def get_nowait(self) -> Any:
        """For the writer: one more packet of its portion. Raises QueueEmpty: nothing waits, or the portion is full."""
        if self._handed_out >= PORTION:
            raise asyncio.QueueEmpty
        packet = super().get_nowait()  # `get` calls this, too
        self._handed_out += 1
        return packet

    def _init(self, maxsize: int) -> None:
        self._queue: deque[Any] = deque()

    def _put(self, item: Any) -> None:
        if getattr(item, "packet_type", None) in _SIGNS:
            self._queue.appendleft(item)
        else:
            self._queue.append(item)
        self.bytes += _size(item)
        if self._cut_off is None:
            return
        if self.bytes > ROOMY:
            self._roomy.clear()
        if self.bytes > self._limit:
            cut_off, self._cut_off = self._cut_off, None
            cut_off(self)

    def _get(self) -> Any:
        item = self._queue.popleft()
        size = _size(item)
        self.bytes -= size
        self._handed_bytes += size
        if self.bytes <= ROOMY:
            self._roomy.set()
        return item


def _size(packet: Any) -> int:
    if isinstance(packet, Frame):
        return packet.size
    data = getattr(packet, "data", None)
    return len(data) if isinstance(data, str | bytes) else 0
