"""Subscriptions to single resources of one server; those of the 2026 era are in `listen`."""

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from smcp_computer.mcp.errors import ServerError, ServerTimedOut
from smcp_computer.mcp.requests import Requests

AT_ONCE: Final = 8
"""Requests to subscribe that one server gets at a time."""


class Subscriptions(Protocol):
    """How a server is asked to tell when resources change."""

    async def subscribe(self, uris: Collection[str], *, timeout: float) -> dict[str, ServerError]:
        """Ask for all of them. Returns those that failed, each with why.

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

    async def subscribe(self, uris: Collection[str], *, timeout: float) -> dict[str, ServerError]:
        return await self._all("resources/subscribe", uris, timeout)

    async def unsubscribe(self, uris: Collection[str], *, timeout: float) -> None:
        await self._all("resources/unsubscribe", uris, timeout)

    async def _all(self, method: str, uris: Collection[str], timeout: float) -> dict[str, ServerError]:
        deadline = asyncio.get_running_loop().time() + timeout
        left = iter(uris)
        failed: dict[str, ServerError] = {}

        async def one_by_one() -> None:
            for uri in left:
                rest = deadline - asyncio.get_running_loop().time()
                try:
                    if rest <= 0:
                        raise ServerTimedOut(self._requests.server, "did not answer in time")
                    await self._requests.send(method, {"uri": uri}, timeout=rest)
                except ServerError as error:
                    failed[uri] = error

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(AT_ONCE, len(uris))):
                tasks.create_task(one_by_one())
        return failed
