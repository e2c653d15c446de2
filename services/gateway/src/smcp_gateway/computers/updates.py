"""What one Computer on Socket.IO tells of its resources, on its way to its office.

A change that comes after a pause is told at once. What follows it closely waits, at most `GATHER_S`, and goes together:
of each resource once, however often it was said. What was said first is told first. Where very much has to wait, since
no registry answers, a change of a part becomes one of the whole that is subscribed to, and says nothing but which. What
waits ends with the subscription that it is told for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from smcp_bus.errors import BodyTooLarge, BusError
from smcp_proto.errors import NotInOffice, RateLimited, SmcpError, TimedOut, Unavailable

GATHER_S: Final = 0.1
"""As native Computers gather by default (seconds)."""
MOST_BYTES: Final = 256 * 1024
"""What may wait of one Computer as it said it."""
MOST_SHORT_BYTES: Final = 1024 * 1024
"""What may wait beside it in short: more than an Agent's 1,000 subscriptions need, unless their URIs are very long."""
SHORT_BYTES: Final = 512
"""What a change costs in short beside its URI."""
HEALING: Final = (NotInOffice, RateLimited, TimedOut, Unavailable)
"""Refusals that end by themselves."""

_log: Final = logging.getLogger("smcp_gateway.computers.updates")

Tell = Callable[[], Awaitable[object]]
"""Tells the office. Raises BusError or SmcpError where it did not work."""
Later = Callable[[str, Callable[[], Awaitable[object]]], None]
"""`Errands.until_done`."""


class Key(NamedTuple):
    """What says the same is told once."""

    agent: str | None
    server: str | None
    uri: str


@dataclass(frozen=True, slots=True, eq=False)
class _Said:
    tell: Tell
    size: int


class Short(NamedTuple):
    """A change without what its Computer said beside the resource."""

    key: Key
    tell: Tell

    @property
    def size(self) -> int:
        """Bytes that it takes while it waits."""
        return len(self.key.uri.encode(errors="surrogatepass")) + SHORT_BYTES


class Updates:
    """Args:
    later: runs what tells of what waits, again and again until it works.
    unwanted: whether nobody is subscribed (any more) to what that update tells of.
    computer: whose they are, for the log.
    """

    def __init__(self, later: Later, *, unwanted: Callable[[Key], bool], computer: str) -> None:
        self._later = later
        self._unwanted = unwanted
        self._computer = computer
        self._refusing = False
        self._waiting: dict[Key, _Said] = {}
        self._bytes = 0
        self._gathering = False
        self._ended = False
        self._order = asyncio.Lock()
        self._telling: tuple[Key, asyncio.Timeout] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def gathering(self) -> bool:
        """Whether a change that is said now waits."""
        return self._gathering

    async def add(self, key: Key, tell: Tell, size: int, *, short: Short) -> None:
        """A change was said; the last word of a resource counts.

        Args:
            size: bytes that it takes while it waits.
            short: what is kept of it where too much waits already.

        Raises:
            BusError, SmcpError: too much waits, and cannot be told now; this one was not taken.
        """
        if self._bytes + size - self._size(key) > MOST_BYTES:
            try:
                await self.flush()
            except (BusError, SmcpError):
                if not self._has_room_for(short):
                    raise
                key, tell, size = *short, short.size
        if self._unwanted(key):
            return  # since it was said
        self._bytes += size - self._size(key)
        self._waiting[key] = _Said(tell, size)
        if self._gathering:
            return
        self._gathering = True
        try:
            with suppress(BusError, SmcpError):  # it is tried again
                await self.flush()
        finally:
            self._later("telling of updates", self._gather)

    async def flush(self) -> None:
        """Tell what waits now. What is said meanwhile waits on.

        Raises:
            BusError, SmcpError: it does not work now; what was not told waits on.
        """
        async with self._order:
            for key in list(self._waiting):
                said = self._waiting.get(key)  # the last word, also of what is said while others are told
                if said is None:
                    continue  # dropped meanwhile
                try:
                    await self._tell(key, said)
                except (SmcpError, BodyTooLarge) as error:
                    if isinstance(error, HEALING):
                        raise
                    _log.warning("an update cannot be told, and is dropped: %s", type(error).__name__)
                if self._waiting.get(key) is said:  # else it was said once more while it was told, or dropped
                    del self._waiting[key]
                    self._bytes -= said.size
            self._refusing = False

    def drop(self) -> None:
        """Subscriptions have ended: what waits for them is told to nobody, and nothing of it is asked of a registry
        again. Else an Agent that comes next under the same name would hear it."""
        for key in [key for key in self._waiting if self._unwanted(key)]:
            self._bytes -= self._waiting.pop(key).size
        if self._telling is not None and self._unwanted(self._telling[0]):
            self._telling[1].reschedule(asyncio.get_running_loop().time())
            self._telling = None

    def end(self) -> None:
        """The Computer is no member here any more: what waits is tried once more. Idempotent.

        Where it left, the registry refuses that, and what was acknowledged up to `GATHER_S` before is told to nobody.
        No more is lost by it than by the leave: a subscription ends with the membership of its Computer, and who hears
        of the leave drops all that it knew of it; so too in the old office of a Computer that switched. One that moves
        to another gateway stays a member, and is told of. What else a Computer says of itself (`server:update_*`, its
        capabilities, `resources/list_changed`) does not wait here: it is told before it is acknowledged.
        """
        self._ended = True

    async def _tell(self, key: Key, said: _Said) -> None:
        """Raises BusError, SmcpError: it does not work now."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._telling = key, scope
                await said.tell()
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._telling = None

    def _has_room_for(self, short: Short) -> bool:
        """Whether it can be kept; that it is refused is said once, until all could be told again."""
        has_room = self._bytes + short.size - self._size(short.key) <= MOST_BYTES + MOST_SHORT_BYTES
        if not has_room and not self._refusing:
            self._refusing = True
            _log.warning(
                "the Computer %r says more changes than are kept while no registry takes them: the rest is refused",
                self._computer,
            )
        return has_room

    def _size(self, key: Key) -> int:
        said = self._waiting.get(key)
        return 0 if said is None else said.size

    async def _gather(self) -> None:
        """Tell what waits, again and again, until nothing was said for a while."""
        while True:
            if not self._ended:
                await asyncio.sleep(GATHER_S)
            if not self._waiting:
                break
            try:
                await self.flush()
            except (BusError, SmcpError):
                if not self._ended:
                    raise
                break
        self._gathering = False
