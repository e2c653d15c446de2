"""Short work that nobody waits for: telling the registry of a member that left, of a call that timed out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from smcp_bus.backoff import Backoff
from smcp_bus.errors import BusError
from smcp_proto.errors import Malformed, NotAllowed, SmcpError

_log: Final = logging.getLogger("smcp_gateway.background_tasks")

Work = Callable[[], Awaitable[object]]
"""Raises SmcpError or BusError where it did not work."""


class BackgroundTasks:
    """Tasks of a group; they end with it."""

    def __init__(self, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._start = start
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def once(self, what: str, work: Work) -> None:
        """Try it; a failure is logged."""
        self._run(self._once(what, work))

    def until_done(self, what: str, work: Work) -> None:
        """Try it until it works, or is refused for good (NotAllowed, Malformed)."""
        self._run(self._until_done(what, work))

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
        if self._closed:
            work.close()
            return
        task = self._start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _once(self, what: str, work: Work) -> None:
        try:
            await work()
        except (BusError, SmcpError) as error:
            _log.info("%s did not work: %s", what, type(error).__name__)

    async def _until_done(self, what: str, work: Work) -> None:
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                await work()
            except (NotAllowed, Malformed) as error:
                _log.warning("%s was refused: %s", what, type(error).__name__)
                return
            except (BusError, SmcpError) as error:
                _log.info("%s did not work yet: %s", what, type(error).__name__)
            else:
                return
            await asyncio.sleep(backoff.next())
