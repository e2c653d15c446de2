"""Subscriptions to single resources of one server; those of the 2026 era are in `listen`."""

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

from smcp_computer.mcp.errors import ServerError, ServerTimedOut
from smcp_computer.mcp.requests import Requests

AT_ONCE: Final = 8
"""Requests to subscribe that one server gets at a time, of those that are asked for together."""

Answered = Callable[[str, ServerError | None], None]
"""Called once for each URI, as soon as the server has answered for it, with why it failed. It must not block."""


class Subscriptions(Protocol):
    """How a server is asked to tell when resources change."""

    async def subscribe(self, uris: Collection[str], answered: Answered, *, timeout: float) -> None:
        """Ask for all of them, until each is answered.

        Args:
            timeout: seconds for all together.
        """
        ...

    async def unsubscribe(self, uris: Collection[str], *, timeout: float) -> None:
        """Ask for these no more. What goes wrong is not told: what a server tells unasked is ignored."""
        ...


class RequestedSubscriptions:
    """By `resources/subscribe`, one resource at a time: servers of the 2025 era."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def subscribe(self, uris: Collection[str], answered: Answered, *, timeout: float) -> None:
        """As `Subscriptions.subscribe`: one `resources/subscribe` for each."""
        await self._all("resources/subscribe", uris, answered, timeout)

    async def unsubscribe(self, uris: Collection[str], *, timeout: float) -> None:
        """As `Subscriptions.unsubscribe`: one `resources/unsubscribe` for each."""
        await self._all("resources/unsubscribe", uris, lambda uri, error: None, timeout)

    async def _all(self, method: str, uris: Collection[str], answered: Answered, timeout: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        left = iter(uris)

        async def one_by_one() -> None:
            for uri in left:
                rest = deadline - asyncio.get_running_loop().time()
                try:
                    if rest <= 0:
                        raise ServerTimedOut(self._requests.server, "did not answer in time")
                    await self._requests.send(method, {"uri": uri}, timeout=rest)
                except ServerError as error:
                    answered(uri, error)
                else:
                    answered(uri, None)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(AT_ONCE, len(uris))):
                tasks.create_task(one_by_one())
