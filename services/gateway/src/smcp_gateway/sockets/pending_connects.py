"""Connections whose CONNECT has not been accepted yet, and what a CONNECT says.

Each has a deadline, and each address may have so many. Their bytes, and the TCP connections below
them, are bounded by `smcp_service.http_limits`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from aiohttp import web

from smcp_bus.callers import CALLER_KEY
from smcp_gateway.sockets.packet import AUTH_BYTES, OVERSIZED
from smcp_gateway.sockets.session import DEFAULT_MAX_MESSAGE
from smcp_proto.errors import Malformed, TooLarge

VERSION_PARAMETER: Final = "a2c_version"
CONNECT_S: Final = 10.0
"""How long a client may take to connect to the namespace, where it has to say who it is."""
REFUSED_S: Final = 1.0
"""How long a client that was refused may take to hear so."""


class Arrivals:
    """Made once for a gateway.

    Args:
        most: connections of one address; 0: any number.
        close: ends a connection whose time is up, if it still is not let in.
    """

    def __init__(self, most: int, close: Callable[[str], None]) -> None:
        self._most = most
        self._close = close
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._sources: dict[str, str] = {}
        self._of: Counter[str] = Counter()

    def has_room(self, source: str) -> bool:
        """Whether one more connection may come from there."""
        return not self._most or self._of[source] < self._most

    def opened(self, engine_id: str, source: str) -> None:
        self._sources[engine_id] = source
        self._of[source] += 1
        self.expect(engine_id, CONNECT_S)

    def expect(self, engine_id: str, seconds: float) -> None:
        """It has that many seconds from now, or less where it was so before."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(engine_id)
        if timer is None or timer.when() > loop.time() + seconds:
            self._stop(engine_id)
            self._timers[engine_id] = loop.call_later(seconds, self._late, engine_id)

    def ended(self, engine_id: str) -> None:
        """It is let in, or gone. Idempotent."""
        self._stop(engine_id)
        source = self._sources.pop(engine_id, None)
        if source is not None:
            self._of[source] -= 1
            if not self._of[source]:
                del self._of[source]

    def _stop(self, engine_id: str) -> None:
        timer = self._timers.pop(engine_id, None)
        if timer is not None:
            timer.cancel()

    def _late(self, engine_id: str) -> None:
        del self._timers[engine_id]
        self._close(engine_id)


def greeting(request: web.Request, auth: object) -> tuple[int, bool, str | None, str | None]:
    """What a client says when it connects: bytes of the largest message that it takes, whether it reads flat errors,
    its `caller_key`, and the version of its protocol.

    Args:
        request: the one that began the connection.
        auth: from CONNECT.

    Raises:
        TooLarge: `auth` is too long.
        Malformed: a field has the wrong type.
    """
    said = {} if auth is None else auth
    if said == OVERSIZED:
        raise TooLarge(f"auth: is longer than {AUTH_BYTES} bytes", details={"field": "auth", "limit": AUTH_BYTES})
    if not isinstance(said, dict):
        raise _malformed("auth", "is not a JSON object")
    max_message, flat_errors = said.get("max_message", DEFAULT_MAX_MESSAGE), said.get("flat_errors", False)
    if not isinstance(max_message, int) or isinstance(max_message, bool) or max_message <= 0:
        raise _malformed("auth.max_message", "is not a positive integer")
    if not isinstance(flat_errors, bool):
        raise _malformed("auth.flat_errors", "is not true or false")
    caller_key = said.get(CALLER_KEY)
    if not (caller_key is None or isinstance(caller_key, str)):
        raise _malformed(f"auth.{CALLER_KEY}", "is not a string")
    return max_message, flat_errors, caller_key, request.query.get(VERSION_PARAMETER)


def _malformed(field: str, reason: str) -> Malformed:
    return Malformed(f"{field}: {reason}", details={"field": field})
