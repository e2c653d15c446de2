"""The gate of an owner: whether this process may run what arrives for its Computers.

Who serves a Computer's subject is a member of the queue group `owner`, and nats-py subscribes again by itself after a
broken connection. So the gate is closed from the moment the connection breaks until the registry has confirmed
the claim again, and also when the process itself stood still (a suspended host): its place may be another's now. A
standstill counts while the gate is closed, too: a confirmation that waited in the socket meanwhile opens nothing.
While it is closed, every request is answered 503 with the header `Smcp-Not-Run`, and nothing is run.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Final

import orjson

from smcp_bus.bus import Bus, Connection, Incoming, Reply, RequestHandler
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_proto.errors import ErrorCode, Unavailable

_log = logging.getLogger("smcp_bus.owner")

ABSENT_S: Final = 5.0
"""How long an Agent that is gone may take to come back before its calls are cancelled (seconds)."""

MOVING: Final = "moving"
"""The value of `Smcp-Not-Run` where the Computer changes its owner just now."""

CLOSED_REPLY: Final = Reply(
    orjson.dumps(Unavailable("this Computer is being confirmed; ask again").body().model_dump()),
    {ERROR: str(int(ErrorCode.UNAVAILABLE)), NOT_RUN: "1"},
)
"""What a gated owner answers: nothing was run, asking again is safe."""
MOVING_REPLY: Final = replace(CLOSED_REPLY, headers={**CLOSED_REPLY.headers, NOT_RUN: MOVING})
"""What it answers where the Computer is on its way here, or leaves."""


class OwnerGate:
    """Closed at first. `run()` must be running for as long as the gate is used.

    Args:
        lease_s: after half of it without a beat of the loop the process is taken to have stood still.
    """

    def __init__(self, bus: Bus, *, lease_s: float) -> None:
        self._bus = bus
        self._longest_silence = lease_s / 2
        self._open = False
        self._generation = 0
        self._closed = asyncio.Event()
        self._closed.set()
        self._loop = asyncio.get_running_loop()
        self._beat = self._loop.time()

    @property
    def is_open(self) -> bool:
        """Whether a request may run now. Closes the gate by itself where the loop stood still."""
        self._look()
        return self._open

    @property
    def generation(self) -> int:
        """Changes at each closing: taken before a claim is confirmed, given to `open` afterwards."""
        self._look()  # a standstill from before the question says nothing against its answer
        return self._generation

    def open(self, generation: int) -> bool:
        """Open the gate, unless it was closed since `generation` was taken. Returns whether it is open."""
        self._look()
        if generation != self._generation or not self._bus.connected:
            return False
        self._beat = self._loop.time()
        self._open = True
        self._closed.clear()
        return True

    def close(self, why: str) -> None:
        """Close it now; what runs goes on, nothing new begins."""
        if self._open:
            _log.info("the gate is closed: %s", why)
        self._open = False
        self._generation += 1
        self._closed.set()

    async def wait_closed(self) -> None:
        """Return when the gate is closed: time to have the claim confirmed."""
        await self._closed.wait()

    def guard(self, handler: RequestHandler) -> RequestHandler:
        """`handler` behind the gate."""

        async def guarded(incoming: Incoming) -> Reply:
            if not self.is_open:
                return CLOSED_REPLY
            return await handler(incoming)

        return guarded

    async def run(self) -> None:
        """Watch the connection and the clock until cancelled; the gate is closed afterwards."""
        unwatch = self._bus.watch(self._on_connection)
        try:
            while True:
                self._look()
                self._beat = self._loop.time()
                await asyncio.sleep(self._longest_silence / 4)
        finally:
            unwatch()
            self.close("stopped")

    def _look(self) -> None:
        """A standstill since the last beat is a closing, also of a closed gate: the generation changes."""
        now = self._loop.time()
        if now - self._beat > self._longest_silence:
            self._beat = now  # once for each
            self.close("the process stood still")

    def _on_connection(self, connection: Connection) -> None:
        if connection is Connection.DOWN:
            self.close("the connection to NATS broke")
