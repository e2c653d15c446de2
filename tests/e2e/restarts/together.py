"""Several works as one. The standard library alone."""

import asyncio
from collections.abc import Sequence

from tests.e2e.restarts.orders import Work


def together(works: Sequence[Work]) -> Work:
    """All of them side by side; one that fails ends the others."""

    async def work(finishing: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for one in works:
                group.create_task(one(finishing))

    return work


async def idle(finishing: asyncio.Event) -> None:
    """Only be there."""
    await finishing.wait()
