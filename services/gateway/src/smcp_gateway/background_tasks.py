"""Short work that nobody waits for: telling the registry of a member that went, of a call that timed out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from smcp_bus.backoff import Backoff
from smcp_bus.errors import BusError
from smcp_proto.errors import Malformed, NotAllowed, SmcpError

_log: Final = logging.getLogger("smcp_gateway.background_tasks")

Errand = Callable[[], Awaitable[object]]
"""Raises SmcpError or BusError where it did not work."""


class Errands:
    """Tasks of a group; they end with it."""

    def __init__(self, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._start = start
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def once(self, what: str, errand: Errand) -> None:
        """Try it; a failure is logged."""
        if not self._closed:
            self._run(self._once(what, errand))

    def until_done(self, what: str, errand: Errand) -> None:
        """Try it until it works, or is refused for good (NotAllowed, Malformed)."""
        if not self._closed:
            self._run(self._until_done(what, errand))

    async def settle(self, *, within: float) -> None:
        """Wait for what is under way, at most so long (seconds); the rest is given up."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        self.close()

    def close(self) -> None:
        """Give up what is under way, and take nothing more: the process ends."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _once(self, what: str, errand: Errand) -> None:
        try:
            await errand()
        except (BusError, SmcpError) as error:
            _log.info("%s did not work: %s", what, type(error).__name__)

    async def _until_done(self, what: str, errand: Errand) -> None:
        backoff = Backoff(first_s=0.1, longest_s=5.0)
        while True:
            try:
                await errand()
            except (NotAllowed, Malformed) as error:
                _log.warning("%s was refused: %s", what, type(error).__name__)
                return
            except (BusError, SmcpError) as error:
                _log.info("%s did not work yet: %s", what, type(error).__name__)
            else:
                return
            await asyncio.sleep(backoff.next())
