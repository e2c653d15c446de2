"""A gateway with more than its fair share of the clients tells some to go elsewhere: so new replicas fill up.

The registries say the share with each renewal of the lease; `surplus` says how many go, and when. Who has been here
longest goes first, if nothing of him or for him is unanswered: he is the newest elsewhere, so everybody is told once
before anybody is told twice. His place is kept as in a drain, and his office hears nothing (`drain`).

Who comes back here all the same, where what stands in front of the gateways is sticky, is not told again for some
minutes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from smcp_bus.errors import BusError
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Assertion, AssertOutcome
from smcp_gateway.rooms.offices import Doubt
from smcp_gateway.rooms.repair import asserted
from smcp_gateway.sockets.session import Place, Session, Sessions
from smcp_proto.errors import SmcpError

LOOKS: Final = 60
"""In the time over which a surplus is spread."""
SHORTEST_LOOK_S: Final = 0.05
AGAIN_S: Final = 600.0
"""How long a client is not told again by the same gateway (seconds)."""
QUIET_S: Final = 5.0
"""How long one whose place is kept, and that begins something just then, may take to be quiet again (seconds)."""
LOOK_S: Final = 0.05
"""Between two looks at whether it is."""

HangUp = Callable[[Session, str], Awaitable[None]]
"""Closes a client's connection, saying why in the log."""
KeepPlace = Callable[[Session], Awaitable[None]]
"""Has the registry keep a member's place for who it is; `Session.moving` says whether it does."""

_log: Final = logging.getLogger("smcp_gateway.rebalance")


SETTLE_LEASES: Final = 4 / 3
"""Leases for which there has to be a surplus: a gateway that died is counted for one, and a share is a third old."""
MARGIN: Final = 2
"""So many sockets above the fair share are no surplus, and `MARGIN_SHARE` of it."""
MARGIN_SHARE: Final = 0.1
PER_S: Final = 50.0
"""Clients that are told to go in a second at most: replicas take in as many beside everything else (`drain.PER_S`)."""
TAIL: Final = 1 / 10
"""Of the time over which they are spread: what is left near its end (of clients that were not quiet, or came back) is
spread over so much of it."""
LONGEST_LOOK: Final = 1 / 20
"""Of that time: a look counts for no more, however long ago the one before was. What a process that stood still has
missed is not made up for at once."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """What is remembered from one look to the next; times are in seconds of one clock."""

    since: float | None = None
    """Since when there is a surplus, above the margin at first; None: there is none."""
    begun: float | None = None
    """Since when clients are told to go; None: they are not."""
    looked: float = 0.0
    """When it was looked last while they are."""
    due: float = 0.0
    """What of a client was due then: less than one."""


NONE: Final = Surplus()


class Shares:
    """The fair shares that were said lately. The largest counts: who is on the way from one gateway to another is held
    by none of them for a moment, or is in no lease yet, and the share is too small by him.

    Args:
        lease_s: who was said nothing for a lease knows nothing. `SETTLE_LEASES` of it are lately.
    """

    def __init__(self, lease_s: float) -> None:
        self.settle_s = SETTLE_LEASES * lease_s
        self._lease_s = lease_s
        self._said: deque[tuple[float, int]] = deque()

    def note(self, share: int | None, now: float) -> None:
        """It was said now; None: it is not known."""
        if share is None:
            self._said.clear()
        else:
            self._said.append((now, share))

    def largest(self, now: float) -> int | None:
        """Of those that were said lately; None where none is known any more."""
        while self._said and now - self._said[0][0] > self.settle_s:
            self._said.popleft()
        if not self._said or now - self._said[-1][0] > self._lease_s:
            return None
        return max(share for _, share in self._said)


def most(share: int) -> float:
    """How many sockets a gateway may have before it tells anybody to go."""
    return share * (1 + MARGIN_SHARE) + MARGIN


def decide(
    before: Surplus, now: float, *, sockets: int, share: int | None, settle_s: float, spread_s: float
) -> tuple[Surplus, int]:
    """How many of `sockets` are to be told to go now, and what is to be remembered.

    Never so many that fewer than the share stay. All of a surplus goes in `spread_s`, evenly but for the last of it; no
    faster than `PER_S`.

    Args:
        before: what was remembered at the look before; `NONE` at the first.
        sockets: that are here, without those that were told.
        share: the fair one; None where it is not known (any more).
        settle_s: so long there has to be a surplus before anybody is told.
        spread_s: above 0.
    """
    if share is None:
        return NONE, 0
    over = sockets - share
    if before.begun is None:
        if sockets <= most(share):
            return NONE, 0
        since = now if before.since is None else before.since
        if now - since < settle_s:
            return Surplus(since), 0
        return Surplus(since, begun=now, looked=now), 0
    if over <= 0:
        return NONE, 0
    left = max(before.begun + spread_s - now, spread_s * TAIL)
    passed = min(now - before.looked, spread_s * LONGEST_LOOK)
    due = min(before.due + min(over / left, PER_S) * passed, over)
    count = int(due)
    return Surplus(before.since, before.begun, now, due - count), count


class Rebalance:
    """Args:
    hang_up: closes a client's connection.
    keep_place: as `Drain.keep_place`.
    doubt: told when it is not known whether the registry still counts a member that is one here.
    unwritten: bytes of answers that a client has not been sent yet.
    spread_s: over how long a surplus is told to go (seconds); 0: nobody ever is.
    """

    def __init__(
        self,
        sessions: Sessions,
        registry: RegistryClient,
        *,
        hang_up: HangUp,
        keep_place: KeepPlace,
        doubt: Doubt,
        unwritten: Callable[[Session], int],
        spread_s: float,
        lease_s: float,
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._hang_up = hang_up
        self._keep_place = keep_place
        self._doubt = doubt
        self._unwritten = unwritten
        self._spread_s = spread_s
        self._shares = Shares(lease_s)
        self._said = asyncio.Event()
        self._going: set[Session] = set()
        self._told = Told()
        self._stopped = False
        self._loop = asyncio.get_running_loop()

    def told(self, share: int | None) -> None:
        """A registry has said the fair share; None: none knows it."""
        if self._stopped or not self._spread_s:
            return
        self._shares.note(share, self._loop.time())
        self._said.set()

    def stop(self) -> None:
        """The gateway stops: everybody goes, and not by this."""
        self.told(None)
        self._stopped = True

    async def run(self) -> None:
        """Look at each share that is said, and more often while clients are told to go; until cancelled."""
        surplus = NONE
        async with asyncio.TaskGroup() as moves:
            while True:
                if surplus.begun is None:
                    await self._said.wait()
                else:
                    await asyncio.sleep(max(self._spread_s / LOOKS, SHORTEST_LOOK_S))
                self._said.clear()
                surplus, count = self._decide(surplus)
                for session in self._choose(count):
                    self._going.add(session)
                    moves.create_task(self._move(session))

    def _decide(self, before: Surplus) -> tuple[Surplus, int]:
        here = len(self._sessions) - sum(not session.closed for session in self._going)
        now = self._loop.time()
        share = self._shares.largest(now)
        after, count = decide(
            before, now, sockets=here, share=share, settle_s=self._shares.settle_s, spread_s=self._spread_s
        )
        if after.begun is not None and before.begun is None:
            _log.info("clients above the fair share are told to go", extra={"sockets": here, "share": share})
        return after, count

    def _choose(self, count: int) -> list[Session]:
        """Those that have been here longest, among those that are quiet and were not told lately.

        Nobody who has just come: he may be about to join.
        """
        chosen: list[Session] = []
        if not count:
            return chosen
        now = self._loop.time()
        for session in self._sessions:  # in the order in which they came
            if now - session.connected_at < self._shares.settle_s:
                break
            if session in self._going or not self._is_quiet(session) or self._told.lately(session, now):
                continue
            chosen.append(session)
            if len(chosen) == count:
                break
        return chosen

    def _is_quiet(self, session: Session) -> bool:
        return not (session.busy or session.closed or session.leaving or self._unwritten(session))

    async def _move(self, session: Session) -> None:
        try:
            await self._keep_place(session)
            kept = session.membership is None or session.moving
            if not kept:
                self._shares.note(None, self._loop.time())  # the registries have enough to do: it has to stand anew
            if kept and await self._comes_to_rest(session):
                self._told.note(session, self._loop.time())
                session.leaving = True  # with the closing in one step: nothing is refused, or begun, in between
                await self._hang_up(session, "others have fewer clients")
            elif not (session.closed or session.leaving or self._stopped):
                await self._stays(session)
        finally:
            self._going.discard(session)

    async def _comes_to_rest(self, session: Session) -> bool:
        """Wait until it is quiet again, for a while; False where it is not, or has gone by itself."""
        until = self._loop.time() + QUIET_S
        while not self._is_quiet(session):
            if session.closed or session.leaving or self._stopped or self._loop.time() > until:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def _stays(self, session: Session) -> None:
        """It is not told to go after all: its place is its own as before. Where that cannot be said, nothing is lost by
        it: a member whose time to move is over stays one for as long as its gateway holds it."""
        session.moving = False
        membership = session.membership
        if membership is None:
            return
        try:
            said = Assertion(members=[asserted(session, membership, moving=False)])
            result = await self._registry.assert_members(said)
        except (BusError, SmcpError) as error:
            _log.info("a member that stays is still said to move: %s", type(error).__name__)
        else:
            if result.members[0].outcome is not AssertOutcome.UNCHANGED:
                self._doubt()


class Told:
    """Who was told to go within the last `AGAIN_S`: members by their places, everybody else by how long he is here."""

    def __init__(self) -> None:
        self._members: dict[Place, float] = {}
        """When each was told (loop time), the earliest first."""
        self._others_since: float | None = None
        """When the first of the others was told; who has come since may be one of them."""

    def note(self, session: Session, now: float) -> None:
        """It is being told now (loop time)."""
        self._forget(now)
        place = session.place
        if place is not None:
            self._members.pop(place, None)
            self._members[place] = now
        elif self._others_since is None:
            self._others_since = now

    def lately(self, session: Session, now: float) -> bool:
        """Whether it is, or may be, one of them."""
        self._forget(now)
        place = session.place
        if place is not None:
            return place in self._members
        return self._others_since is not None and session.connected_at >= self._others_since

    def _forget(self, now: float) -> None:
        while self._members:
            place, told = next(iter(self._members.items()))
            if now - told < AGAIN_S:
                break
            del self._members[place]
        if self._others_since is not None and now - self._others_since >= AGAIN_S:
            self._others_since = None
