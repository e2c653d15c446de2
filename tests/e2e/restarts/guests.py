"""Computers that come and go without end: so many joins a second, each followed by its leave."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvloop
from socketio.exceptions import ConnectionError as CannotConnect
from socketio.exceptions import SocketIOError

from tests.e2e.actors.socketio_computer import SocketIoComputer
from tests.e2e.restarts.caller import Journal, journal
from tests.e2e.restarts.orders import Work, config, follow
from tests.e2e.restarts.together import together


class Guest(SocketIoComputer):
    """It goes from office to office; it has no tools."""

    TOOLS = ()

    def __init__(self, told: Mapping[str, Any], name: str, number: int, journal: Journal) -> None:
        super().__init__(told["offices"][0], name)
        self._offices = _from(told["offices"], number)
        self._urls = _from(told["urls"], number)
        self._pause_s = told["pause_s"]
        self._journal = journal

    async def come(self) -> None:
        """Connect to the next gateway that takes it."""
        while True:
            await self.close()
            self._sio = self._new_client()
            self.lost.clear()
            try:
                await self.connect(next(self._urls))
            except CannotConnect:
                await asyncio.sleep(0.1)
            else:
                return

    async def wander(self, finishing: asyncio.Event) -> None:
        due = time.monotonic() - random.uniform(0, self._pause_s)  # at once as many come in a second as later
        while not finishing.is_set():
            due += self._pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self.lost.is_set():
                await self.come()
            self.office, asked = next(self._offices), time.monotonic()
            place = {"role": self.role, "name": self.name, "office_id": self.office}
            self._journal.write(join=await self._answer("server:join_office", place), at=asked)
            await self._answer("server:leave_office", {"office_id": self.office})

    async def _answer(self, event: str, request: Mapping[str, Any]) -> str:
        """`done`, or why not."""
        asked = asyncio.ensure_future(self.ask(event, request))
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({asked, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                return "cut off"
            done, why = asked.result()
        except SocketIOError:
            return "cut off"
        else:
            return "done" if done else str(why)
        finally:
            asked.cancel()
            lost.cancel()
            await asyncio.gather(asked, lost, return_exceptions=True)


def _from(values: Sequence[str], number: int) -> Iterator[str]:
    """The values again and again, beginning with that one."""
    return itertools.islice(itertools.cycle(values), number % len(values), None)


@asynccontextmanager
async def guests(told: dict[str, Any]) -> AsyncIterator[Work]:
    async with AsyncExitStack() as stack:
        book = stack.enter_context(journal(told["journal"]))
        opened = [Guest(told, name, number, book) for number, name in enumerate(told["names"])]
        for guest in opened:
            stack.push_async_callback(guest.close)
            await guest.come()
        yield together([guest.wander for guest in opened])


if __name__ == "__main__":
    uvloop.run(follow(guests(config())))
