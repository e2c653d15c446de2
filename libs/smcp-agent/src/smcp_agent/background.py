"""The background work of an agent: all of it in one task, which ends it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from smcp_agent.connecting.link import Link
from smcp_agent.errors import Closed

Result = TypeVar("Result")


class Background:
    """Keeps the link, and owns what is spawned meanwhile: what is fetched in the background, the cancels.

    Args:
        on_end: called when all has ended.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._link: Link | None = None
        self._group: asyncio.TaskGroup | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._keeper is not None

    async def start(self, link: Link, *, name: str) -> None:
        """Begin, with an open link; `stop` must follow. `name` is the task's."""
        started = asyncio.Event()
        self._link = link
        self._keeper = asyncio.create_task(self._keep(link, started), name=name)
        await started.wait()

    @property
    def stopped(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._stopped

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run `work` until it ends or all is stopped.

        Raises:
            Closed: nothing runs in the background, not yet or not any more.
        """
        if self._group is None or self._stopped:
            work.close()
            raise not_open()
        return self._group.create_task(work)

    async def stop(self) -> None:
        """End everything, and leave the office. Raises what went wrong in the background: a defect in here."""
        keeper, link = self._keeper, self._link
        assert keeper is not None
        assert link is not None
        self._stopped = True
        link.fail(not_open)
        keeper.cancel()
        try:
            await asyncio.wait({keeper})
        finally:
            await link.close()
        if not keeper.cancelled():
            keeper.result()

    async def _keep(self, link: Link, started: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as self._group:
                started.set()
                await link.run()
        finally:
            self._stopped = True
            link.fail(not_open)
            self._on_end()


def not_open() -> Closed:
    """What a link says that nothing keeps."""
    return Closed("this SmcpAgent is not open: use it inside its `async with`")
