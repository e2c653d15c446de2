"""One world for many scenarios that hurt it and leave it whole."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from tests.e2e.worlds.world import World


class SharedWorld:
    """A new one is opened after a scenario that failed. For fixtures: `open` and `close` run outside of any loop.

    Args:
        another: a world that is not open yet.
    """

    def __init__(self, another: Callable[[], AbstractAsyncContextManager[World]]) -> None:
        self._another = another
        self._runner = asyncio.Runner()  # a test's own loop would end the world with itself
        self._opened: tuple[AbstractAsyncContextManager[World], World] | None = None
        self._failed: BaseException | None = None

    def open(self) -> None:
        """See to it that it is whole."""
        if self._failed is not None:
            self._end(self._failed)
        if self._opened is None:
            coming = self._another()
            self._opened = coming, self._runner.run(coming.__aenter__())

    @contextmanager
    def hurt(self) -> Iterator[World]:
        """The world, for one scenario."""
        assert self._opened is not None
        world = self._opened[1]
        try:
            with world.telling():
                yield world
        except BaseException as error:
            self._failed = error
            raise

    def close(self) -> None:
        """Raises AssertionError: a part did not end well, though no scenario failed."""
        with self._runner:
            self._end(self._failed)

    def _end(self, failed: BaseException | None) -> None:
        opened, self._opened, self._failed = self._opened, None, None
        if opened is None:
            return
        how = (None, None, None) if failed is None else (type(failed), failed, failed.__traceback__)
        self._runner.run(opened[0].__aexit__(*how))
