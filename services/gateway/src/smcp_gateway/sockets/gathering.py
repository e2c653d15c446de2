"""Notifications on their way to many clients: under load several are written to a client at a time.

Writing to a socket costs far more than what is written, and a room of 500 hears each of 500 joins. A notification that
comes after a pause is written at once; those that follow it closely wait, at most `WINDOW_S`, and go together. Their
order for each client stays, also among what else is written to it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from smcp_gateway.sockets.outbox import Outbox
from smcp_gateway.sockets.packet import Frame

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
