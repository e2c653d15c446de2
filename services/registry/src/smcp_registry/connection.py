"""Since when this registry's connection to NATS stands, and work that begins anew with each connection."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import nats.errors

from smcp_bus.backoff import Backoff
from smcp_bus.bus import Bus, Connection
from smcp_bus.errors import BusError, describe
from smcp_proto.errors import Unavailable

_log = logging.getLogger("smcp_registry.connection")

LONGEST_PAUSE_S: Final = 2.0


class ConnectionWatch:
    """Watches the bus. Call `close` when it is no longer used."""

    def __init__(self, bus: Bus) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time() if bus.connected else None
        self._up = asyncio.Event()
        if bus.connected:
            self._up.set()
        self._scopes: set[asyncio.Timeout] = set()
        self.close = bus.watch(self._on_connection)

    def up_for(self) -> float:
        """Seconds since when the connection has stood without a break; 0 where there is none."""
        return 0.0 if self._since is None else self._loop.time() - self._since

    def begin_anew(self, why: str) -> None:
        """Count from now: nothing may be concluded from what was not seen while this process was suspended."""
        _log.warning("the time without a break begins anew: %s", why)
        if self._since is not None:
            self._since = self._loop.time()

    async def keep(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` for ever: from its beginning after each reconnect, and after a pause where NATS failed it."""
        backoff = Backoff(first_s=0.1, longest_s=LONGEST_PAUSE_S)
        while True:
            await self._up.wait()
            started = self._loop.time()
            scope = asyncio.timeout(None)
            try:
                async with scope:
                    self._scopes.add(scope)
                    try:
                        await work()
                    finally:
                        self._scopes.discard(scope)
            except (nats.errors.Error, BusError, Unavailable, TimeoutError) as error:
                if scope.expired():
                    continue
                _log.warning("%s failed and begins anew: %s", what, describe(error))
            if self._loop.time() - started > LONGEST_PAUSE_S:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    def _on_connection(self, connection: Connection) -> None:
        match connection:
            case Connection.UP:
                self._since = self._loop.time()
                self._up.set()
            case Connection.DOWN:
                self._since = None
                self._up.clear()
            case Connection.SLOW:
                pass
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(self._loop.time())
