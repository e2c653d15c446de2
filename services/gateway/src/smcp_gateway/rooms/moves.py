"""Sends clients away: drain, rebalance, expired tokens."""

import asyncio
import logging
import math
import random
from dataclasses import dataclass, field
from typing import Final

from smcp_auth.authenticator import LOOK_S, Authenticator
from smcp_bus import registry_contract as contract
from smcp_gateway.calls import CallTable
from smcp_gateway.rooms.memberships import KEEP_S, Repair
from smcp_gateway.settings import GatewaySettings
from smcp_gateway.sockets.session import Session, Sessions
from smcp_gateway.sockets.socketio_server import SocketIoServer
from smcp_proto.errors import Unavailable
from smcp_service.lifecycle import waiting_for_calls

PER_S: Final = 50
"""Clients that are sent away in a second, as others can take in; more if all took over a third of the drain time."""
AGENTS_SHARE: Final = 1 / 3
"""Share of the drain time: after it no new call starts for an Agent; running calls have the rest."""
COMPUTERS_SHARE: Final = 5 / 12
"""The same for Computers: later, so that calls of Agents here do not wait until their Computer has moved."""
LAST_WORDS_S: Final = 1.0
"""Kept of the drain time (at most a tenth) for the 503 answers at its end."""
POLL_S: Final = 0.05
"""Between two looks whether something is in flight or unsent for a client that is to be sent away."""
MARGIN: Final = 2
MARGIN_SHARE: Final = 0.1
"""So many sockets above the fair share, and this part of it, stay: nearly even gateways exchange no clients."""
AGE: Final = 3
"""Times the spread: a younger client stays. It may be about to join, or return at once through a sticky proxy."""

_log: Final = logging.getLogger("smcp_gateway.rooms.moves")


def due(sockets: int, share: int | None, spread_s: float) -> int:
    """How many of `sockets` to send away in this second: twice the fair share (None: unknown) is shed in `spread_s`."""
    surplus = 0 if share is None else sockets - math.floor(share * (1 + MARGIN_SHARE)) - MARGIN
    return max(0, min(surplus, math.ceil(sockets / spread_s), PER_S))


@dataclass(eq=False, repr=False)
class Moves:
    """Sends clients away: all when this gateway stops, those above its fair share, and those whose token is over.

    When it stops, each client goes once nothing is in flight for it, or after a part of the drain time: the registry
    keeps its seat (*moving*), no new work starts for it (*leaving*), and its connection is closed when its calls have
    ended, at the end of the drain time with 503 (ADR 0011).
    """

    sessions: Sessions
    transport: SocketIoServer
    repair: Repair
    calls: CallTable
    settings: GatewaySettings
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _going: set[Session] = field(default_factory=set, init=False)
    """Sessions above the fair share that are being sent away."""
    _ending: set[Session] = field(default_factory=set, init=False)
    """Those without a valid token."""
    _share: int | None = field(default=None, init=False)
    _sockets_at_renewal: int = field(default=0, init=False)
    """The number of sockets that the fair share was computed from. Later ones do not count as surplus."""

    async def drain(self, *, within: float) -> None:
        """Send all clients away within so many seconds. The transport must be draining already."""
        begin = self._loop.time()
        if running := sum(call.tracked for call in self.calls):
            _log.info(waiting_for_calls(running, within))
        sessions = list(self.sessions)
        random.shuffle(sessions)
        pause = min(AGENTS_SHARE * within / max(len(sessions), 1), 1 / PER_S)
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                for number, session in enumerate(sessions):
                    group.create_task(self._send_away(session, begin + pause * number, begin, within))
            sessions = list(self.sessions)  # those that connected meanwhile

    async def _send_away(self, session: Session, turn: float, begin: float, within: float) -> None:
        share = begin + (COMPUTERS_SHARE if session.role == "computer" else AGENTS_SHARE) * within
        end = begin + within - min(LAST_WORDS_S, within / 10)
        await asyncio.sleep(turn - self._loop.time())
        await self._quiet(session, share)
        kept_at = await self._keep(session, end)
        session.leaving = True
        if not await self._quiet(session, end) and not session.closed:
            _log.warning("the calls of a client are cut off", extra={"session": session.id})
            self._cut_off(session)
            await self._quiet(session, self._loop.time() + LAST_WORDS_S)
        elif self._loop.time() - kept_at > max(self.settings.move_s / 10, POLL_S):
            await self._keep(session, begin + within)  # `move_s` counts from here
        while not session.closed and session.unsent_bytes and self._loop.time() < end:  # noqa: ASYNC110 -- a slow connection
            await asyncio.sleep(POLL_S)
        if not session.closed:
            await self.transport.hang_up(session, "the gateway is stopping")

    async def _keep(self, session: Session, until: float) -> float:
        kept = await self.repair.keep_seat(session, within=min(KEEP_S, until - self._loop.time()))
        return self._loop.time() if kept else -math.inf

    async def _quiet(self, session: Session, until: float) -> bool:
        """Wait at most until then (loop time) that nothing is in flight for a client; whether that is so."""
        while session.busy and self._loop.time() < until:  # noqa: ASYNC110 -- an event would cost each call something
            await asyncio.sleep(POLL_S)
        return not session.busy

    def _cut_off(self, session: Session) -> None:
        for call in self.calls.of_session(session.id):
            # by `moving` our SDK knows that it has to repeat the call elsewhere
            details = {"may_have_run": True} if call.on_wire else {"may_have_run": False, "moving": True}
            self.calls.settle(call, Unavailable("the gateway is stopping", details=details))

    async def end_expired(self, authenticator: Authenticator) -> None:
        """End sessions whose token or key is no longer valid, until cancelled. Registries may be slow to keep seats."""
        async with asyncio.TaskGroup() as ends:
            while True:
                await asyncio.sleep(LOOK_S)
                await authenticator.refresh()
                for session in self.sessions:
                    principal = session.principal
                    if principal is None or session in self._ending:
                        continue
                    if (why := authenticator.ended(principal)) is not None:
                        self._ending.add(session)
                        ends.create_task(self._end(session, why, may_return=authenticator.may_return(principal)))

    async def _end(self, session: Session, why: str, *, may_return: bool) -> None:
        session.leaving = True  # no new requests of it begin
        try:
            if may_return:
                await self.repair.keep_seat(session)
            await self.transport.hang_up(session, why)
        finally:
            self._ending.discard(session)

    def describe(self) -> contract.LeaseRenewal:
        """The content of a lease renewal. The fair share is unknown until the answer comes."""
        self._sockets_at_renewal, self._share = len(self.sessions), None
        return contract.LeaseRenewal(sockets=self._sockets_at_renewal, accepting=not self.transport.draining)

    def renewed(self, state: contract.LeaseState) -> None:
        """The lease was renewed: take the fair share that came with it (None: unknown)."""
        self._share = state.fair_share

    async def rebalance(self) -> None:
        """Send away each second what is above the fair share, until cancelled or draining."""
        async with asyncio.TaskGroup() as moves:
            while self.settings.rebalance_s and not self.transport.draining:
                await asyncio.sleep(LOOK_S)
                for session in self._above_share():
                    self._going.add(session)
                    moves.create_task(self._move(session))

    def _above_share(self) -> list[Session]:
        here = min(len(self.sessions), self._sockets_at_renewal) - sum(not session.closed for session in self._going)
        count = due(here, self._share, self.settings.rebalance_s)
        if count and not self._going:
            _log.info("clients above the fair share are sent away", extra={"sockets": here, "share": self._share})
        old = self._loop.time() - AGE * self.settings.rebalance_s
        # sessions are in order of connection
        ready = (each for each in self.sessions if each.connected_at <= old and self._may_go(each))
        return [session for _, session in zip(range(count), ready, strict=False)]

    def _may_go(self, session: Session) -> bool:
        gone = session.closed or session.leaving or session in self._going
        return not (gone or session.busy or session.unsent_bytes)

    async def _move(self, session: Session) -> None:
        try:
            kept = await self.repair.keep_seat(session)
        finally:
            self._going.discard(session)
        if not kept:
            self._share = None  # the registries are busy: wait until one says it again
        if kept and self._may_go(session):
            session.leaving = True  # set right before closing: nothing is refused or begun in between
            await self.transport.hang_up(session, "others have fewer clients")
        elif not (session.closed or session.leaving or self.transport.draining):
            session.moving = False  # it has begun something, or its seat may not be kept: it stays
            self.repair.assert_soon(session)
