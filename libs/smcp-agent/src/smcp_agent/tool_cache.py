"""The tools of the office's Computers, fetched in the background and kept up to date."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from smcp_agent.errors import Closed, NotFound, RateLimited, SmcpError, TimedOut, Unavailable
from smcp_proto.schemas import SMCPTool

_RETRIED: Final = (Unavailable, TimedOut, RateLimited)
_FIRST_DELAY_S: Final = 0.5
_MAX_DELAY_S: Final = 30.0

logger = logging.getLogger(__name__)

Tools = tuple[SMCPTool, ...]


class _Entry:
    """One Computer's tools, and the task that fetches them while there is something to fetch."""

    def __init__(self) -> None:
        self.tools: Tools | None = None
        self.error: SmcpError | None = None
        self.stale = True
        self.first_try = asyncio.Event()
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class ToolCache:
    """One entry per Computer, from `refresh` to `drop`.

    Several refreshes while one fetch runs become one more fetch. A fetch that failed for a passing reason is repeated
    with growing pauses until it succeeds or the Computer is dropped.
    """

    def __init__(
        self,
        fetch: Callable[[str], Awaitable[Tools]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        changed: Callable[[str, Tools], None],
    ) -> None:
        self._fetch = fetch
        self._spawn = spawn
        self._changed = changed
        self._entries: dict[str, _Entry] = {}

    def refresh(self, computer: str) -> None:
        """Fetch this Computer's tools (again)."""
        entry = self._entries.setdefault(computer, _Entry())
        entry.stale = True
        entry.wake.set()
        if entry.task is None or entry.task.done():
            entry.task = self._spawn(self._keep(computer, entry))

    def drop(self, computer: str) -> None:
        """Forget a Computer that left."""
        entry = self._entries.pop(computer, None)
        if entry is None:
            return
        entry.tools = None
        entry.error = NotFound("the Computer left the office", details={"computer": computer})
        entry.first_try.set()
        if entry.task is not None:
            entry.task.cancel()

    async def get(self, computer: str) -> Tools:
        """What is known of the Computer's tools; waits only for its first fetch.

        Raises:
            SmcpError: there is no such Computer, or its tools could not be fetched so far.
        """
        entry = self._entries.get(computer)
        if entry is None:
            raise NotFound("no such Computer in the office", details={"computer": computer})
        await entry.first_try.wait()
        if entry.tools is None:
            assert entry.error is not None
            raise entry.error
        return entry.tools

    async def all(self) -> dict[str, Tools]:
        """The tools of all Computers, by name; one whose tools could not be fetched so far is left out."""
        for entry in list(self._entries.values()):
            await entry.first_try.wait()
        return self.known()

    def known(self) -> dict[str, Tools]:
        """As `all`, without waiting for anything."""
        return {name: entry.tools for name, entry in sorted(self._entries.items()) if entry.tools is not None}

    async def _keep(self, computer: str, entry: _Entry) -> None:
        delay = _FIRST_DELAY_S
        while entry.stale:
            entry.stale = False
            entry.wake.clear()
            try:
                tools = await self._fetch(computer)
            except SmcpError as error:
                entry.error = error
                entry.first_try.set()
                if isinstance(error, Closed):  # the agent is being closed: nobody waits for its tools
                    return
                logger.warning("the tools of Computer %r could not be fetched: %s", computer, error.message)
                if isinstance(error, _RETRIED):
                    entry.stale = True
                    await _pause(entry.wake, delay)
                    delay = min(_MAX_DELAY_S, 2 * delay)
                continue
            delay = _FIRST_DELAY_S
            before, entry.tools, entry.error = entry.tools, tools, None
            entry.first_try.set()
            if tools != before:
                self._changed(computer, tools)


async def _pause(wake: asyncio.Event, delay: float) -> None:
    try:
        async with asyncio.timeout(delay * random.uniform(0.5, 1.5)):  # noqa: S311 -- jitter
            await wake.wait()
    except TimeoutError:
        return
