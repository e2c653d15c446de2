"""Disconnects clients above the gateway's fair share, so that they reconnect to other replicas.

The registries give the share with each renewal of the lease. The longest-connected clients go first, each when nothing
is in flight for it. The registry keeps the seat of a client that goes, so its office hears nothing.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from smcp_bus.registry_contract import LeaseState
from smcp_gateway.sockets.session import Session, Sessions

LOOK_S: Final = 1.0
"""`PER_S` bounds what is sent away after one look."""
MARGIN: Final = 2
MARGIN_SHARE: Final = 0.1
"""So many sockets above the fair share, and this part of it, stay: nearly even gateways exchange no clients."""
PER_S: Final = 50
"""Clients that are sent away in a second at most: other replicas can take in so many (`drain.PER_S`)."""
AGE: Final = 3
"""Times the spread: a younger client stays. It may be about to join, or return at once through a sticky proxy."""

_log: Final = logging.getLogger("smcp_gateway.rebalance")


def surplus(sockets: int, share: int | None) -> int:
    """How many of `sockets` are above the fair share (None: unknown)."""
    return 0 if share is None else max(0, sockets - math.floor(share * (1 + MARGIN_SHARE)) - MARGIN)


def due(sockets: int, share: int | None, spread_s: float) -> int:
    """How many to send away in this second. Twice the share is shed within `spread_s`, unless `PER_S` limits it."""
    return min(surplus(sockets, share), math.ceil(sockets / spread_s), PER_S)


class Rebalance:
    """Args:
    hang_up: disconnects a client; the text is logged.
    keep_seat: as `Drain.keep_seat`.
    stays: asserts a client's member at the registry, which ends its move.
    unwritten: bytes of answers that a client has not been sent yet.
    spread_s: over how long a surplus is sent away (seconds); 0: never.
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
        """The lease was renewed: take the fair share that came with it (None: unknown)."""
        self._share = state.fair_share

    def stop(self) -> None:
        """The gateway stops: `Drain` sends all clients away."""
        self._stopped = True

    async def run(self) -> None:
        """Check each second, until cancelled."""
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
            _log.info("clients above the fair share are sent away", extra={"sockets": here, "share": self._share})
        old = asyncio.get_running_loop().time() - AGE * self._spread_s
        # sessions are in order of connection
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
