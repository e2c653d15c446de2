"""The tasks of an `SmcpAgent`: they run from its opening to its end. Not those of the application."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from smcp_agent.errors import not_open

_Result = TypeVar("_Result")


class Background:
    """The tasks of an agent. A defect in one of them ends all. `on_end` is called when they are about to end."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.started = False
        self.stopped = False
        self._on_end = on_end
        self._tasks: set[asyncio.Task[Any]] = set()
        self._defect: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Run `work` until it ends or all is stopped. Raises Closed: nothing runs, not yet or not any more."""
        if self.stopped or not self.started:
            work.close()
            raise not_open()
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self) -> None:
        """End everything. Raises the first defect."""
        self._end()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._defect is not None:
            raise self._defect

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defect = self._defect or error
            self._end()

    def _end(self) -> None:
        self.stopped = True
        self._on_end()
        for task in self._tasks:
            task.cancel()
