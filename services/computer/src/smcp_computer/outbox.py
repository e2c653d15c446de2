"""What a Computer still has to tell its office: kept until it was told, over a broken connection, too."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from smcp_bus.backoff import Backoff
from smcp_bus.errors import BodyTooLarge, BusError
from smcp_computer.office_client import OfficeClient
from smcp_proto.errors import NotInOffice, RateLimited, SmcpError, TimedOut, Unavailable

HEALING: Final = (NotInOffice, RateLimited, TimedOut, Unavailable)
"""Refusals that end by themselves. What is refused otherwise would be refused for ever."""
ALL: Final = ""
"""In place of a verb: the bus does not work, for any of them."""

Body = Callable[[], bytes]


class Key(NamedTuple):
    """What says the same is told once."""

    verb: str
    server: str = ""
    uri: str = ""
    agent: str | None = None


class _Entry(NamedTuple):
    at: float
    """When it is told at the earliest (loop time)."""
    body: Body


class Outbox:
    """`run` must be running.

    The servers take turns, so that one with much to tell holds up no other. What is refused and may heal is tried again
    after a pause, in which only what is of its verb waits; what cannot heal is dropped, with one warning.

    Args:
        may_tell: whether this Computer is a member now.
        gather_s: what is added again within so many seconds is told once.
        log: where it is said what could not be told.
    """

    def __init__(
        self,
        registry: OfficeClient,
        office: str,
        name: str,
        *,
        may_tell: Callable[[], bool],
        gather_s: float,
        log: logging.Logger,
    ) -> None:
        self._registry = registry
        self._office = office
        self._name = name
        self._may_tell = may_tell
        self._gather_s = gather_s
        self._log = log
        self._lanes: dict[tuple[str, str], dict[Key, _Entry]] = {}
        """By verb and server, in the order in which it is told; none is empty."""
        self._telling: Key | None = None
        """What is being told, and has not been dropped meanwhile."""
        self._held: dict[str, float] = {}
        """Verbs that were refused for now: until when (loop time)."""
        self._backoffs: dict[str, Backoff] = {}
        self._said: set[tuple[str, str, type[Exception]]] = set()
        """Of what it was said that it is dropped, since this Computer became a member."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[Key]:
        return (key for lane in self._lanes.values() for key in lane)

    def __contains__(self, key: Key) -> bool:
        return key in self._lanes.get((key.verb, key.server), ())

    def held(self) -> dict[str, int]:
        """How much is still to be told, or is being told now."""
        return {"untold": len(self) + (self._telling is not None)}

    def count(self, verb: str, server: str) -> int:
        """How many of these are still to be told."""
        return len(self._lanes.get((verb, server), ()))

    def add(self, key: Key, body: Body) -> None:
        """Tell it soon. `body` is called when it is told; the one that was given last counts."""
        lane = self._lanes.setdefault((key.verb, key.server), {})
        lane[key] = _Entry(lane[key].at if key in lane else self._loop.time() + self._gather_s, body)
        self._wake.set()

    def drop(self, which: Callable[[Key], bool]) -> None:
        """These are of no use to anybody any more."""
        for key in [key for key in self if which(key)]:
            self._take((key.verb, key.server), key)
        if self._telling is not None and which(self._telling):
            self._telling = None

    def resume(self) -> None:
        """This Computer is a member (again): tell what was left."""
        self._held = {ALL: self._loop.time() + self._gather_s}  # who hears it comes back from the same break
        self._said.clear()
        self._wake.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            self._wake.clear()
            if self._may_tell():
                await self._turn()
            due = self._due() if self._may_tell() else None
            if due is not None and due <= self._loop.time():
                continue
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _turn(self) -> None:
        """Tell one of each server and verb whose time has come."""
        for place in list(self._lanes):
            lane = self._lanes.get(place)
            if lane is None or self._due_of(place) > self._loop.time():
                continue
            key = self._telling = next(iter(lane))
            entry = self._take(place, key)  # a change while it is told is told again
            if not await self._told(key, entry) and self._telling is not None:
                self._lanes.setdefault(place, {}).setdefault(key, entry)
            self._telling = None

    async def _told(self, key: Key, entry: _Entry) -> bool:
        """Whether nothing is left to do for it."""
        try:
            await self._registry.tell(self._office, "computer", self._name, key.verb, entry.body())
        except (BusError, SmcpError) as error:
            if isinstance(error, BodyTooLarge) or not isinstance(error, (BusError, *HEALING)):
                self._give_up(key, error)
                return True
            self._log.warning("%s could not be told: %s", key.verb, error)
            held = ALL if isinstance(error, BusError) else key.verb
            backoff = self._backoffs.setdefault(held, Backoff(first_s=0.2, longest_s=5.0))
            self._held[held] = self._loop.time() + backoff.next()
            return False
        for which in (ALL, key.verb):
            self._backoffs.pop(which, None)
        return True

    def _give_up(self, key: Key, error: Exception) -> None:
        cause = (key.verb, key.server, type(error))
        if cause not in self._said:
            self._said.add(cause)
            of = f" of MCP server {key.server!r}" if key.server else ""
            self._log.warning("%s%s cannot be told, and is dropped: %s", key.verb, of, error)

    def _take(self, place: tuple[str, str], key: Key) -> _Entry:
        entry = self._lanes[place].pop(key)
        if not self._lanes[place]:
            del self._lanes[place]
        return entry

    def _due(self) -> float | None:
        """When there is something to do; None: when something is added."""
        return min(map(self._due_of, self._lanes), default=None)

    def _due_of(self, place: tuple[str, str]) -> float:
        first = next(iter(self._lanes[place].values()))
        return max(first.at, self._held.get(ALL, 0.0), self._held.get(place[0], 0.0))
