"""Sends clients above the gateway's fair share to other replicas, so that new replicas fill up.

The registries say the share with each renewal of the lease. The clients that have been here longest go first, each when
nothing of it or for it is unanswered; its seat is kept as in a drain, and its office hears nothing.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from smcp_bus.registry_contract import LeaseState
from smcp_gateway.sockets.session import Session, Sessions

LOOK_S: Final = 1.0
MARGIN: Final = 2
MARGIN_SHARE: Final = 0.1
"""So many sockets above the fair share stay, and this part of it: gateways that are about even leave everybody where it
is."""
PER_S: Final = 50
"""Clients that are told to go in a second at most: replicas take in as many beside everything else (`drain.PER_S`)."""
AGE: Final = 3
"""Times the spread that a client has to have been here: it may be about to join, and behind a proxy that is sticky by
address it would be told again and again."""

_log: Final = logging.getLogger("smcp_gateway.rebalance")


def surplus(sockets: int, share: int | None) -> int:
    """How many of `sockets` are too many, where `share` is the fair one (None: it is not known)."""
    return 0 if share is None else max(0, sockets - math.floor(share * (1 + MARGIN_SHARE)) - MARGIN)


def due(sockets: int, share: int | None, spread_s: float) -> int:
    """How many are told to go in this second: a gateway with twice its share has shed the surplus within `spread_s`,
    but for `PER_S`."""
    return min(surplus(sockets, share), math.ceil(sockets / spread_s), PER_S)


class Rebalance:
    """Args:
    hang_up: closes a client's connection, saying why in the log.
    keep_seat: as `Drain.keep_seat`.
    stays: has a client's member asserted at the registry, which ends its move.
    unwritten: bytes of answers that a client has not been sent yet.
    spread_s: over how long a surplus is told to go (seconds); 0: nobody ever is.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        hang_up: Callable[[Session, str], Awaitable[None]],
        keep_seat: Callable[[Session], Awaitable[bool]],
        stays: Callable[[Session], None],
        unwritten: Callable[[Session], int],
        spread_s: float,
    ) -> None:
        self._sessions = sessions
        self._hang_up = hang_up
        self._keep_seat = keep_seat
        self._stays = stays
        self._unwritten = unwritten
        self._spread_s = spread_s
        self._going: set[Session] = set()
        self._stopped = False
        self._share: int | None = None

    def renewed(self, state: LeaseState) -> None:
        """A registry has renewed the lease, and says the fair share; None: it does not know it."""
        self._share = state.fair_share

    def stop(self) -> None:
        """The gateway stops: everybody goes, and not by this."""
        self._stopped = True

    async def run(self) -> None:
        """Look each second, until cancelled."""
        async with asyncio.TaskGroup() as moves:
            while self._spread_s and not self._stopped:
                await asyncio.sleep(LOOK_S)
                for session in self._choose():
                    self._going.add(session)
                    moves.create_task(self._move(session))

    def _choose(self) -> list[Session]:
        here = len(self._sessions) - sum(not session.closed for session in self._going)
        count = due(here, self._share, self._spread_s)
        if count and not self._going:
            _log.info("clients above the fair share are told to go", extra={"sockets": here, "share": self._share})
        old = asyncio.get_running_loop().time() - AGE * self._spread_s
        # in the order in which they came
        quiet = (each for each in self._sessions if each.connected_at <= old and self._is_quiet(each))
        return [session for _, session in zip(range(count), quiet, strict=False)]

    def _is_quiet(self, session: Session) -> bool:
        gone = session.closed or session.leaving or session in self._going
        return not (gone or session.busy or self._unwritten(session))

    async def _move(self, session: Session) -> None:
        try:
            kept = await self._keep_seat(session)
        finally:
            self._going.discard(session)
        if not kept:
            self._share = None  # the registries are busy: wait until one says it again
        if kept and self._is_quiet(session):
            session.leaving = True  # set right before closing: nothing is refused or begun in between
            await self._hang_up(session, "others have fewer clients")
        elif not (session.closed or session.leaving or self._stopped):
            session.moving = False  # it has begun something, or its seat may not be kept: it stays
            self._stays(session)
