"""A gateway that stops sends its clients to the other replicas: one after the other, and each when it is quiet.

A client is served until its slot, once nothing is in flight for it; for a third of the drain time at most (a Computer
for a twelfth longer). Then the registry keeps its place for its identity (it is *moving*), nothing new is begun for it
(it *leaves*), and when what runs has ended its connection is closed. It comes back to another replica and takes its
place again, and its office hears nothing. What still runs at the end of the drain time is cut off.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from smcp_bus.errors import BusError
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Assertion, AssertOutcome
from smcp_gateway.calls.table import CallTable
from smcp_gateway.rooms.memberships import Memberships
from smcp_gateway.rooms.repair import asserted
from smcp_gateway.sockets.session import Session, Sessions
from smcp_proto.errors import SmcpError, Unavailable
from smcp_service.lifecycle import waiting_for_calls

PER_S: Final = 50.0
"""Clients that are told to go in a second; more where they would take longer than a third of the drain time so."""
SHARE: Final = 1 / 3
"""Of the drain time: after it nothing new is begun for an Agent, so that calls have the rest to end in."""
LAST_WORDS_S: Final = 1.0
"""What is kept of the drain time (at most a tenth) for telling those that are cut off."""
COMPUTERS_SHARE: Final = 5 / 12
"""The same for Computers. Before, the Agents here have stopped to begin anything: what is in flight for them then runs
already, and does not have to wait until its Computer has come back elsewhere."""
MARK_S: Final = 2.0
"""How long the registry may take to mark a member (seconds), tries included; twice as long after each miss."""
LONGEST_MARK_S: Final = 8.0
MARK_AGAIN_S: Final = 0.5
"""Calmer than a join: a gateway that has much to do marks many members at a time."""
MARK_PAUSE_S: Final = 0.1
SHORTEST_S: Final = 1.0
"""Between two times that the registry is asked for one member that waits for its calls; twice as long after each miss,
up to `LONGEST_MARK_S`: what all of them ask again and again makes a registry slow that was only late."""
MARKED_AT_ONCE: Final = 32

WRITING_PAUSE_S: Final = 0.05
"""Between two looks at whether all that was answered is written."""

HangUp = Callable[[Session, str], Awaitable[None]]
"""Closes a client's connection, saying why in the log."""

_log: Final = logging.getLogger("smcp_gateway.drain")


class Drain:
    """Args:
    unwritten: bytes of answers that a client has not been sent yet.
    move_s: how long the registry keeps a place for who moves (seconds); it is asked again before that is over.
    """

    def __init__(
        self,
        sessions: Sessions,
        memberships: Memberships,
        registry: RegistryClient,
        calls: CallTable,
        *,
        hang_up: HangUp,
        unwritten: Callable[[Session], int],
        move_s: float,
    ) -> None:
        self._sessions = sessions
        self._memberships = memberships
        self._registry = registry
        self._calls = calls
        self._hang_up = hang_up
        self._unwritten = unwritten
        self._move_s = move_s
        self._limit = asyncio.Semaphore(MARKED_AT_ONCE)
        self._loop = asyncio.get_running_loop()

    async def run(self, *, within: float) -> None:
        """Send all clients away within so many seconds. New connections are refused already."""
        begin = self._loop.time()
        if running := sum(call.tracked for call in self._calls):
            _log.info(waiting_for_calls(running, within))
        sessions = list(self._sessions)
        random.shuffle(sessions)
        spread = min(SHARE * within, len(sessions) / PER_S)
        await self._send_all_away(sessions, spread, begin, within)
        # those that were connecting when the others were listed
        await self._send_all_away(list(self._sessions), 0.0, begin, within)
        for session in self._sessions:
            await self._hang_up(session, "the gateway is stopping")

    async def keep_place(self, session: Session) -> None:
        """Have the registry keep a member's place for who it is, before its connection is closed. Where that does not
        work within `MARK_S` the member leaves its office with its connection."""
        await self._mark(session, _Place(), until=math.inf)

    async def _send_all_away(self, sessions: list[Session], spread: float, begin: float, within: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number, session in enumerate(sessions):
                turn = begin + spread * number / len(sessions)
                group.create_task(self._send_away(session, turn, begin, within))

    async def _send_away(self, session: Session, turn: float, begin: float, within: float) -> None:
        share = begin + (COMPUTERS_SHARE if session.role == "computer" else SHARE) * within
        end = begin + within - min(LAST_WORDS_S, within / 10)
        place, last = _Place(), begin + within
        await asyncio.sleep(turn - self._loop.time())
        # Before nothing is begun for it any more: who calls it from then on is told that it moves.
        while await self._quiet(session, share) and self._is_old(place):
            await self._mark(session, place, until=last)
        if self._is_old(place):
            await self._mark(session, place, until=last)
        session.leaving = True
        while not await self._quiet(session, min(end, self._due(place))) and self._loop.time() < end:
            await self._mark(session, place, until=last)
        if session.busy and not session.closed:
            _log.warning("what a client waits for is cut off", extra={"session": session.id})
            self._cut_off(session)
            await self._quiet(session, self._loop.time() + LAST_WORDS_S)
        elif self._is_old(place) or not place.kept:
            await self._mark(session, place, until=last)  # its time begins when it goes
        while not session.closed and self._unwritten(session) and self._loop.time() < end:  # noqa: ASYNC110 -- of a slow line
            await asyncio.sleep(WRITING_PAUSE_S)
        if not session.closed:
            await self._hang_up(session, "the gateway is stopping")

    def _is_old(self, place: "_Place") -> bool:
        return self._loop.time() - place.asked > max(self._move_s / 10, MARK_PAUSE_S)

    def _due(self, place: "_Place") -> float:
        """When the registry is asked again, for a member that waits for its calls (loop time)."""
        return place.asked + (max(self._move_s / 3, SHORTEST_S) if place.kept else place.longer(SHORTEST_S / 2))

    async def _quiet(self, session: Session, until: float) -> bool:
        """Wait until nothing of a client or for it is unanswered, or until then (loop time); whether it came so."""
        if not session.busy:
            return True
        session.idle = asyncio.Event()
        try:
            async with asyncio.timeout_at(until):
                await session.idle.wait()
        except TimeoutError:
            return False
        finally:
            session.idle = None
        return True

    def _cut_off(self, session: Session) -> None:
        for call in self._calls.of_session(session.id):
            # by `moving` our SDK knows that it is to ask again when it has come back
            details = {"may_have_run": True} if call.on_wire else {"may_have_run": False, "moving": True}
            self._calls.settle(call, Unavailable("the gateway is stopping", details=details))

    async def _mark(self, session: Session, place: "_Place", *, until: float) -> None:
        """Have its place kept. Where that never works it is told to go all the same, and leaves its office."""
        try:
            async with asyncio.timeout_at(min(self._loop.time() + place.longer(MARK_S), until)), self._limit:
                while session.membership is not None and not await self._marked(session):  # noqa: ASYNC110 -- asked of others
                    await asyncio.sleep(MARK_PAUSE_S)
            place.kept, place.misses = True, 0
        except (BusError, SmcpError, TimeoutError) as error:
            _log.warning("a member's place cannot be kept: %s", type(error).__name__, extra={"session": session.id})
            place.kept, place.misses = False, place.misses + 1
        place.asked = self._loop.time()

    async def _marked(self, session: Session) -> bool:
        """Ask the registry once. False: it cannot say."""
        membership = session.membership
        assert membership is not None
        assertion = Assertion(members=[asserted(session, membership, moving=True)])
        result = await self._registry.assert_members(assertion, again_s=MARK_AGAIN_S)
        match result.members[0].outcome:
            case AssertOutcome.UNAVAILABLE:
                return False
            case AssertOutcome.REFUSED:
                await self._memberships.lost(session)
            case _ if session.membership is not membership:
                return False  # it has another place by now
            case _:
                session.moving = True
        return True


@dataclass(slots=True)
class _Place:
    """A member's: when the registry was last asked to keep it (loop time), and whether it did."""

    asked: float = -math.inf
    kept: bool = False
    misses: int = 0
    """In a row."""

    def longer(self, seconds: float) -> float:
        """Twice as long after each miss."""
        return min(seconds * 2.0**self.misses, LONGEST_MARK_S)
