"""Asks MCP servers for their lists, and lets one that stays silent hold up nobody a second time."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from smcp_computer.mcp.errors import ServerError, ServerTimedOut
from smcp_computer.mcp.resources import REQUEST_S, Resources
from smcp_computer.resources.cursor import Kind
from smcp_computer.resources.index import ResourceIndex

Answer = TypeVar("Answer")
Key = tuple[Kind, str]

SHORT_S: Final = 0.5
"""Who waited for less has learned nothing of the server."""
GLANCE_S: Final = 0.05
"""How long one that was silent is looked at: it may be back, and then its list is there at once."""


class Patience:
    """A server that did not list in time is waited for no more in its present life; it is asked once more in the
    background each time that somebody wants its list, until it answers. Resources and templates apart.
    """

    def __init__(self, index: ResourceIndex) -> None:
        self._index = index
        self._late: dict[Key, Resources] = {}
        """By the connection at which it was silent."""
        self._asking: dict[Key, asyncio.Task[None]] = {}

    def is_late(self, kind: Kind, server: str) -> bool:
        """Whether it was silent in its present life when it was asked last."""
        try:
            return self._late.get((kind, server)) is self._index.connection(server)
        except ServerError:
            return False

    async def ask(self, kind: Kind, server: str, ask: Callable[[float], Awaitable[Answer]], timeout: float) -> Answer:
        """The server's list.

        Args:
            ask: asks for it, within so many seconds.

        Raises:
            ServerError: of `ask`; `ServerTimedOut` without waiting where it was silent before.
        """
        key, connection = (kind, server), self._index.connection(server)
        if self.is_late(kind, server):
            await asyncio.wait({self._ask_again(key, ask)}, timeout=min(timeout, GLANCE_S))
            if self.is_late(kind, server):
                raise ServerTimedOut(server, "did not list in time")
        try:
            return await ask(timeout)
        except ServerTimedOut:
            if timeout >= SHORT_S:
                self._late[key] = connection
            raise

    async def aclose(self) -> None:
        """End what is asked in the background."""
        asking = [*self._asking.values()]
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    def _ask_again(self, key: Key, ask: Callable[[float], Awaitable[Any]]) -> asyncio.Task[None]:
        task = self._asking.get(key)
        if task is None or task.done():
            task = asyncio.create_task(self._again(key, ask), name=f"lists:{key[1]}")
            self._asking[key] = task
            task.add_done_callback(partial(self._asked, key))
        return task

    def _asked(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._asking.get(key) is task:
            del self._asking[key]

    async def _again(self, key: Key, ask: Callable[[float], Awaitable[Any]]) -> None:
        try:
            await ask(REQUEST_S)
        except ServerTimedOut:
            return
        except ServerError:
            pass  # it answers: who asks next is told what
        self._late.pop(key, None)
