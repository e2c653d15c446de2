"""Reads the metadata that are shown and are not kept: those of one page of the catalog, bounded and side by side."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from smcp_computer.finder.metadata import Unreadable, from_contents
from smcp_computer.mcp.errors import ServerError

AT_ONCE: Final = 64
"""Reads at a time, of all pages that are asked for."""
PER_SERVER: Final = 4
"""Of them of one server."""

Read = Callable[[str, str, float], Awaitable[Mapping[str, Any]]]
"""Reads a resource: server, URI, seconds. Raises ServerError. The result is as the server sent it."""
Place = tuple[str, str]
"""Server and URI."""


class AtNeed:
    """Args:
    read: asks a server.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def summaries(self, places: Sequence[Place], *, timeout: float) -> dict[Place, Mapping[str, Any]]:
        """What the metadata of these documents say now; those are missing that do not come in time or cannot be used.

        Args:
            timeout: seconds for all of them.
        """
        found: dict[Place, Mapping[str, Any]] = {}
        deadline = asyncio.get_running_loop().time() + timeout

        async def one(place: Place) -> None:
            server, uri = place
            async with self._turns.setdefault(server, asyncio.Semaphore(PER_SERVER)), self._turn:
                left = deadline - asyncio.get_running_loop().time()
                try:
                    document, _, _ = from_contents(server, uri, await self._read(server, uri, left))
                except (ServerError, Unreadable):
                    return
                found[place] = document.summary

        try:
            async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as tasks:
                for place in places:
                    tasks.create_task(one(place), name=f"finder:{place[0]}")
        except TimeoutError:
            pass
        return found
