"""The time by which the registries agree: that of nats-server, which keeps their records.

Until when a place is kept (`moving_until`) is written by one registry and read by all, on machines whose clocks may be
minutes apart. By its own clock a registry that is ahead would end at once what another one has just begun, and what it
began itself would last for minutes. So none of them counts by a clock of its own.
"""

import asyncio
import logging
import time
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ValidationError

from smcp_bus.bus import Bus
from smcp_bus.errors import BusError
from smcp_registry.wording import said

_log = logging.getLogger("smcp_registry.clock")

ANSWER_S: Final = 2.0
AGAIN_S: Final = 60.0
"""How often nats-server is asked (seconds): by as little as clocks drift meanwhile this one is wrong."""
APART_S: Final = 5.0
"""What is said of this machine's clock when it differs by more (seconds)."""


class _Info(BaseModel):
    """What is read of JetStream's information on a stream."""

    ts: datetime
    """When it was given, by the clock of the server that leads the stream."""


class StoreClock:
    """Args:
    stream: any stream that is there; it is asked for its information.
    """

    def __init__(self, bus: Bus, stream: str) -> None:
        self._bus = bus
        self._subject = f"$JS.API.STREAM.INFO.{stream}"
        self._loop = asyncio.get_running_loop()
        self._offset: float | None = None
        self._said = False

    @property
    def known(self) -> bool:
        """Whether nats-server has said what time it is."""
        return self._offset is not None

    def now(self) -> float:
        """Unix seconds (UTC). Before the first measurement by this machine's clock."""
        # counted on by the loop's clock: this machine's own may be set at any time
        return time.time() if self._offset is None else self._loop.time() + self._offset

    async def measure(self) -> None:
        """Ask nats-server for its time; wrong by half of what the answer takes at most.

        Raises:
            BusError: no answer. What was known counts on.
        """
        asked = self._loop.time()
        reply = await self._bus.request(self._subject, b"", timeout=ANSWER_S)
        answered = self._loop.time()
        try:
            told = _Info.model_validate_json(reply.body).ts.timestamp()
        except ValidationError:
            return  # the stream is gone; it is made anew by who finds that out
        self._offset = told - (asked + answered) / 2
        self._compare(time.time() - self.now())

    async def run(self) -> None:
        """Measure now and then, until cancelled."""
        while True:
            try:
                await self.measure()
            except BusError as error:
                _log.info("nats-server does not say what time it is: %s", said(error))
            await asyncio.sleep(AGAIN_S)

    def _compare(self, ahead: float) -> None:
        apart = abs(ahead) > APART_S
        if apart and not self._said:
            way = "ahead of" if ahead > 0 else "behind"
            _log.warning("this machine's clock is %.0f s %s nats-server's, which counts", abs(ahead), way)
        self._said = apart
