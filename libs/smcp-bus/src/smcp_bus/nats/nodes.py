"""What the connected nats-server tells of its cluster's nodes, in each INFO that it sends.

It sends one at the start of a connection, and whenever a node came or left; `connect_urls` has the addresses of those
that are there (https://docs.nats.io/reference/reference-protocols/nats-protocol#info). Not where it stands alone, and
not where its configuration keeps them from clients (`no_advertise`).
"""

import asyncio
from collections.abc import Mapping
from typing import Any


class Nodes:
    """Attributes:
    left_at: when it was heard last that a node is there no more (loop time); None: never.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._addresses: frozenset[str] = frozenset()
        self.left_at: float | None = None

    def hear(self, info: Mapping[str, Any]) -> None:
        """Take an INFO."""
        addresses = frozenset(info.get("connect_urls") or ())
        if self._addresses - addresses:
            self.left_at = self._loop.time()
        self._addresses = addresses
