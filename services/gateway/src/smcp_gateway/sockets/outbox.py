"""What waits to be written to one client: counted, bounded, and handed out in portions."""

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
"""Packets that say no more than that the gateway is there: they overtake what waits. Behind large messages they would
come too late for a client on a slow line."""


class Outbox(asyncio.Queue[Any]):
    """engine.io's queue of packets to one client.

    `put` never waits: small messages (pings, notifications) are always taken until `limit` bytes wait, and then the
    client is cut off, since it does not read. Who has a large message waits for `room` first.

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
        """That wait."""
        self.at_once: Callable[[Frame], bool] | None = None
        """Writes a frame that nothing waits before; False: it cannot, the frame has to wait here."""
        self.close_code: int = WSCloseCode.OK
        """What a WebSocket is closed with when all has been written."""

    @property
    def held(self) -> int:
        """Bytes that wait, and of the portion that the writer has and may not have written yet."""
        return self.bytes + self._handed_bytes

    @property
    def has_room(self) -> bool:
        """Whether a large message may be put: the client has read most of what was sent before, or is gone."""
        return self.bytes <= ROOMY or self._cut_off is None

    async def room(self) -> None:
        """Return when there is room."""
        while not self.has_room:
            await self._roomy.wait()  # the one that goes first fills it again: look again

    def release(self) -> None:
        """Nobody reads any more: let everybody go who waits for room."""
        self._cut_off = None
        self._roomy.set()

    def put_nowait(self, item: Any) -> None:
        """Put a packet or a frame behind what waits, or write it at once where nothing does."""
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
        # The writer empties the queue with `get_nowait` after each `get`: this is where its portion ends.
        if self._handed_out >= PORTION:
            raise asyncio.QueueEmpty
        packet = super().get_nowait()
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
