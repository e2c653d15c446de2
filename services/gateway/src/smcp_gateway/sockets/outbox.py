"""What waits to be written to one client: counted, bounded, and handed out in portions."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiohttp import WSCloseCode
from engineio.packet import NOOP, PING

from smcp_gateway.sockets.packet import Frame

PORTION: Final = 16
"""Packets that the writer gets at once: clients refuse a polling response of more than 16 packets."""

ROOMY: Final = 1024 * 1024
"""Bytes in the outbox up to which a large message may join them."""

GATHERED: Final = 16 * 1024
"""Bytes from which what was gathered is written without waiting for more: many small ones are what it is for."""

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
        self._bytes = 0
        self._handed_out = 0
        self._handed_bytes = 0
        self._roomy = asyncio.Event()
        self._roomy.set()
        self._reader_waits = False
        self._gathered: list[Frame] = []
        self._gathered_bytes = 0
        self.at_once: Callable[[Sequence[Frame]], bool] | None = None
        """Writes frames that nothing waits before; False: it cannot, they have to wait here."""
        self.last_word: int = WSCloseCode.OK
        """What a WebSocket is closed with when all has been written."""

    @property
    def bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

    @property
    def held(self) -> int:
        """Bytes that wait, also for others, and of the portion that the writer has and may not have written yet."""
        return self._bytes + self._gathered_bytes + self._handed_bytes

    @property
    def has_room(self) -> bool:
        """Whether a large message may be put: the client has read most of what was sent before, or is gone."""
        return self._bytes <= ROOMY or self._cut_off is None

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
        if self._gathered:
            self.write_gathered()
        if isinstance(item, Frame) and self._written((item,)):
            return
        super().put_nowait(item)

    def gather(self, frame: Frame) -> None:
        """As `put_nowait`, but it may wait for others until `write_gathered`, or until the next is put."""
        self._gathered.append(frame)
        self._gathered_bytes += frame.size
        if self._gathered_bytes > GATHERED:
            self.write_gathered()

    def write_gathered(self) -> None:
        """What was gathered waits for nothing any more."""
        frames, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        if frames and not self._written(frames):
            for frame in frames:
                super().put_nowait(frame)

    def _written(self, frames: Sequence[Frame]) -> bool:
        return self._reader_waits and not self._queue and self.at_once is not None and self.at_once(frames)

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
        self._bytes += _size(item)
        if self._bytes > ROOMY and self._cut_off is not None:
            self._roomy.clear()
        if self._bytes > self._limit and self._cut_off is not None:
            cut_off, self._cut_off = self._cut_off, None
            cut_off(self)

    def _get(self) -> Any:
        item = self._queue.popleft()
        size = _size(item)
        self._bytes -= size
        self._handed_bytes += size
        if self._bytes <= ROOMY:
            self._roomy.set()
        return item


def _size(packet: Any) -> int:
    if isinstance(packet, Frame):
        return packet.size
    data = getattr(packet, "data", None)
    return len(data) if isinstance(data, str | bytes) else 0


WINDOW_S: Final = 0.05
"""How long a notification waits for others, at most (seconds)."""
AT_ONCE: Final = 256
"""Clients that are written to without waiting, in one such time."""


class Gathering:
    """Writes frames to outboxes. Nobody is waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = 0.0
        self._left = 0
        self._waiting: set[Outbox] = set()
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, outboxes: Sequence[Outbox], frame: Frame) -> None:
        """Write a frame to each: at once where little is told now, else within `WINDOW_S`."""
        now = self._loop.time()
        if now >= self._until and self._timer is None:
            self._until, self._left = now + WINDOW_S, AT_ONCE
        if self._left > 0:
            self._left -= len(outboxes)
            for outbox in outboxes:
                outbox.put_nowait(frame)
            return
        for outbox in outboxes:
            outbox.gather(frame)
        self._waiting.update(outboxes)
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._write)

    def _write(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, set()
        for outbox in waiting:
            outbox.write_gathered()
        self._until, self._left = self._loop.time() + WINDOW_S, 0
