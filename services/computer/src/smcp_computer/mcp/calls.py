"""The calls of tools at one MCP server: each waits until the server is there, is sent once, and can be broken off.

Above is `supervisor`, which says when the server can be called (`opened`) and when not (`closed`). Below is `session`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from smcp_computer.mcp.errors import CallBrokenOff, RequestRefused, ServerNotRunning
from smcp_computer.mcp.sdk_adapter import CallSpan
from smcp_computer.mcp.session import Connection
from smcp_service.lifecycle import set_within


class ServerCalls:
    """`wait_s`: how long a call waits; `why`: why the server is not running; `refused` is given each refusal of its.

    Attributes:
        connection: to the server; None while there is none.
        wanted: set where a call waits.
    """

    def __init__(
        self, server: str, *, wait_s: float, why: Callable[[], str], refused: Callable[[RequestRefused], None]
    ) -> None:
        self.connection: Connection | None = None
        self.wanted = asyncio.Event()
        self._server = server
        self._wait_s = wait_s
        self._why = why
        self._refused = refused
        self._decided = asyncio.Event()
        """Set while there is a connection, and once there will be none: nothing is waited for."""
        self._is_over = False
        self._running: set[asyncio.Timeout] = set()
        """`break_off` brings them forward."""
        self._idle = asyncio.Event()
        """Set while none runs."""
        self._idle.set()

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)

    def opened(self, connection: Connection) -> None:
        self.connection = connection
        self._decided.set()

    def closed(self) -> None:
        self.connection = None
        if not self._is_over:
            self._decided.clear()

    def wait_no_more(self) -> None:
        """There will be no other connection."""
        self._is_over = True
        self._decided.set()

    async def available(self, timeout: float) -> Connection:
        """The connection, waited for at most `wait_s`. Raises ServerNotRunning."""
        return self._alive or await self._awaited(min(timeout, self._wait_s))

    async def run(self, tool: str, arguments: Mapping[str, Any], *, timeout: float, span: CallSpan) -> dict[str, Any]:
        """Raises as `Connection.call`; also CallBrokenOff, and ServerNotRunning: nothing was run."""
        connection = await self.available(timeout)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._running.add(limit)
                self._idle.clear()
                return await connection.call(tool, arguments, timeout=timeout, span=span)
        except TimeoutError:
            if limit.expired():
                why = "was restarted or removed on the Computer before the call ended"
                raise CallBrokenOff(self._server, why) from None
            raise
        except RequestRefused as error:
            self._refused(error)
            raise
        finally:
            self._running.discard(limit)
            if not self._running:
                self._idle.set()

    async def break_off(self, drain_s: float) -> None:
        """Return when none runs. After `drain_s` those that run are broken off."""
        await set_within(drain_s, self._idle)
        for limit in self._running:
            limit.reschedule(asyncio.get_running_loop().time())
        await self._idle.wait()

    @property
    def _alive(self) -> Connection | None:
        """The connection, unless its server has gone."""
        return None if self.connection is None or self.connection.ended.is_set() else self.connection

    async def _awaited(self, seconds: float) -> Connection:
        if self.connection is not None and not self._is_over:
            self._decided.clear()  # the supervisor has not seen yet that it has gone
        if seconds > 0 and not self._decided.is_set():
            self.wanted.set()
            await set_within(seconds, self._decided)
        if (connection := self._alive) is None:
            raise ServerNotRunning(self._server, f"is not running {self._why()}")
        return connection
