"""Short background tasks, for example telling the registry of a member that left or a call that timed out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from smcp_bus.bus import BusError
from smcp_proto.backoff import Backoff
from smcp_proto.errors import Malformed, NotAllowed, SmcpError

_log: Final = logging.getLogger("smcp_gateway.background_tasks")

Work = Callable[[], Awaitable[object]]
"""Raises SmcpError or BusError on failure."""


class BackgroundTasks:
    def __init__(self, start: Callable[[Coroutine[Any, Any, object]], asyncio.Task[object]]) -> None:
        self._start = start
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    def until_done(self, what: str, work: Work, *, once: bool = False) -> None:
        """Retry until it succeeds or is refused (NotAllowed, Malformed); `once`: do not."""
        if not self._closed:
            task = self._start(self._try(what, work, once=once))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settle(self, *, within: float) -> None:
        """Wait for the running tasks, at most so long (seconds); cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        self.close()

    def close(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()

    async def _try(self, what: str, work: Work, *, once: bool) -> object:
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                return await work()
            except (BusError, SmcpError) as error:
                refused = isinstance(error, NotAllowed | Malformed)
                _log.log(logging.WARNING if refused else logging.INFO, "%s failed: %s", what, type(error).__name__)
                if refused or once:
                    return None
            await asyncio.sleep(backoff.next())
