"""Whether bytes still move on a connection whose client owes an answer to a ping.

The ping, or its answer, may stand behind a large message: 20 MB take ten seconds at 16 Mbit/s. So a client counts as
gone only when its line stands still, too.
"""

import asyncio
import socket
import struct
from typing import Any, Final

SLOWEST: Final = 16 * 1024
"""Bytes a second; a line that moves less stands still."""

_BYTES: Final = struct.Struct("=QQ")
_BYTES_AT: Final = 120
"""Where Linux's `struct tcp_info` has `tcpi_bytes_acked` and `tcpi_bytes_received`."""
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)


class Progress:
    """What has moved on the connections that are looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def moves(self, client: str, transport: asyncio.BaseTransport, now: float) -> bool:
        """Whether at least `SLOWEST` moved since the last look at it; the first look sees nothing.

        Args:
            now: seconds.
        """
        moved = moved_bytes(transport)
        before = self._seen.get(client)
        self._seen[client] = (now, moved)
        return before is not None and moved - before[1] >= SLOWEST * max(now - before[0], 0.1)

    def forget(self, client: str) -> None:
        """It is not looked at any more: the next look is a first one. Idempotent."""
        self._seen.pop(client, None)


def moved_bytes(transport: asyncio.BaseTransport) -> int:
    """What the peer has acknowledged and what came from it; 0 where the system does not say (it is Linux that does)."""
    connection: Any = transport.get_extra_info("socket")
    if _TCP_INFO is None or connection is None:
        return 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_AT + _BYTES.size)
    except (OSError, ValueError):  # it has ended; uvloop's says so with a ValueError
        return 0
    return sum(_BYTES.unpack_from(info, _BYTES_AT)) if len(info) >= _BYTES_AT + _BYTES.size else 0
