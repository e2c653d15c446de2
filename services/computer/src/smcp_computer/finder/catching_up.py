"""What catalogs of documents lacked: it is asked for again while nobody asks, and told once it is there (ADR 0020)."""

import asyncio
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Final

from smcp_bus.backoff import Backoff
from smcp_computer.finder.shelf import Shelf
from smcp_service.lifecycle import Background

CATCH_UP_S: Final = 120.0
"""What a catalog lacked is asked for again within it (seconds), also where nobody asks for a catalog; then ever less
often, but at least every `CATCH_UP_LONGEST_S`. The first pause is half of it at least, which is `library.RETRY_S`: what
did not come is due then."""
CATCH_UP_LONGEST_S: Final = 600.0


class CatchingUp:
    """Args:
    tasks: where it goes on.
    tell: called when there is something that a catalog lacked: once the reading of a server's documents ends. It must
        not block.
    read_on: has what is missing of a server asked for now. Returns what reads it.
    """

    def __init__(
        self, tasks: Background, tell: Callable[[], None], read_on: Callable[[Shelf], Set[asyncio.Task[None]]]
    ) -> None:
        self._tasks = tasks
        self._tell = tell
        self._read_on = read_on
        self._of_server: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()

    def shown(self, shelf: Shelf) -> None:
        """A catalog is shown with what is known of a server now: what it lacks is asked for until it is there."""
        task = self._of_server.get(shelf.server)
        if shelf.owe() and (task is None or task.done()):
            name = f"finder:{shelf.server}:again"
            self._of_server[shelf.server] = self._tasks.start(self._ask_again(shelf), name=name)

    def end(self, server: str) -> None:
        """A server is gone: nothing of it is asked for any more."""
        if (task := self._of_server.pop(server, None)) is not None:
            task.cancel()

    @contextmanager
    def reading(self, shelf: Shelf) -> Iterator[None]:
        """While something of a server is read: at the end of all that is read of it, what was lacking is told."""
        shelf.reading += 1
        try:
            yield
        finally:
            shelf.reading -= 1
        if shelf.news and not shelf.reading:
            shelf.news = False
            self._tell()

    async def _ask_again(self, shelf: Shelf) -> None:
        """Ask for what is owed until it is there, less and less often."""
        pauses = Backoff(first_s=CATCH_UP_S, longest_s=CATCH_UP_LONGEST_S)
        while shelf.owes():
            await asyncio.sleep(pauses.next())
            if shelf.owes() and shelf.put_off_until <= self._loop.time() and (readers := self._read_on(shelf)):
                await asyncio.wait(readers)
