"""Moves the clients of a gateway that stops to other replicas, each at its slot, once nothing is in flight for it.

A client waits for that a third of the drain time at most, a Computer a twelfth longer. Then the registry keeps its seat
(*moving*), no new work starts for it (*leaving*), and its connection is closed when its calls have ended. Calls that
still run at the end of the drain time are answered 503.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
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
"""Clients that are sent away in a second; more where that would take longer than a third of the drain time."""
SHARE: Final = 1 / 3
"""Share of the drain time: after it no new call starts for an Agent; running calls have the rest."""
COMPUTERS_SHARE: Final = 5 / 12
"""The same for Computers: later, so that calls of Agents here do not wait until their Computer has moved."""
LAST_WORDS_S: Final = 1.0
"""Kept of the drain time (at most a tenth) for the 503 answers at its end."""
KEEP_S: Final = 8.0
"""How long the registry may take to keep a seat (seconds), retries included: in a drain many ask at once."""
KEEP_AGAIN_S: Final = 0.5
"""Between two requests to keep a seat; longer than for a join, since many ask at once."""
KEPT_AT_ONCE: Final = 32
PAUSE_S: Final = 0.1
"""Between two looks at what is unwritten, and before a seat that no registry could keep is asked for again."""
RETRY_S: Final = 1.0
"""Between two requests to keep the seat of a member whose calls still run."""

_log: Final = logging.getLogger("smcp_gateway.drain")


class Drain:
    """Args:
    hang_up: disconnects a client; the text is logged.
    unwritten: bytes of answers that a client has not been sent yet.
    move_s: how long the registry keeps the seat of a member that moves (seconds).
    """

    def __init__(
        self,
        sessions: Sessions,
        memberships: Memberships,
        registry: RegistryClient,
        calls: CallTable,
        *,
        hang_up: Callable[[Session, str], Awaitable[None]],
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
        self._limit = asyncio.Semaphore(KEPT_AT_ONCE)
        self._loop = asyncio.get_running_loop()

    async def run(self, *, within: float) -> None:
        """Send all clients away within so many seconds. New connections must be refused already."""
        begin = self._loop.time()
        if running := sum(call.tracked for call in self._calls):
            _log.info(waiting_for_calls(running, within))
        sessions = list(self._sessions)
        random.shuffle(sessions)
        spread = min(SHARE * within, len(sessions) / PER_S)
        await self._send_all_away(sessions, spread, begin, within)
        # clients that connected meanwhile
        await self._send_all_away(list(self._sessions), 0.0, begin, within)
        for session in self._sessions:
            await self._hang_up(session, "the gateway is stopping")

    async def keep_seat(self, session: Session, *, within: float = KEEP_S) -> bool:
        """Have the registry keep a member's seat for its identity. False: it failed, and the member leaves its office
        when it disconnects."""
        try:
            async with asyncio.timeout(within), self._limit:
                while (membership := session.membership) is not None:
                    assertion = Assertion(members=[asserted(membership, moving=True)])
                    result = await self._registry.assert_members(assertion, again_s=KEEP_AGAIN_S)
                    [answer] = result.members
                    if answer.outcome is AssertOutcome.REFUSED:
                        await self._memberships.lost(session)
                        break
                    if answer.outcome is not AssertOutcome.UNAVAILABLE and session.membership is membership:
                        session.moving = True
                        membership.revision = max(membership.revision, answer.revision)
                        break
                    await asyncio.sleep(PAUSE_S)
        except (BusError, SmcpError, TimeoutError) as error:
            _log.warning("a member's seat cannot be kept: %s", type(error).__name__, extra={"session": session.id})
            return False
        return True

    async def _send_all_away(self, sessions: list[Session], spread: float, begin: float, within: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number, session in enumerate(sessions):
                turn = begin + spread * number / len(sessions)
                group.create_task(self._send_away(session, turn, begin, within))

    async def _send_away(self, session: Session, turn: float, begin: float, within: float) -> None:
        share = begin + (COMPUTERS_SHARE if session.role == "computer" else SHARE) * within
        end = begin + within - min(LAST_WORDS_S, within / 10)
        await asyncio.sleep(turn - self._loop.time())
        await self._quiet(session, share)
        kept_at = await self._keep(session, end)
        while session.busy and await self._quiet(session, share):
            kept_at = await self._keep(session, end)
        session.leaving = True
        while not await self._quiet(session, min(end, self._again_at(kept_at))) and self._loop.time() < end:
            kept_at = await self._keep(session, end)
        if session.busy and not session.closed:
            _log.warning("the calls of a client are cut off", extra={"session": session.id})
            self._cut_off(session)
            await self._quiet(session, self._loop.time() + LAST_WORDS_S)
        elif self._loop.time() - kept_at > max(self._move_s / 10, PAUSE_S):
            await self._keep(session, begin + within)  # `move_s` counts from here
        while not session.closed and self._unwritten(session) and self._loop.time() < end:  # noqa: ASYNC110 -- a slow connection
            await asyncio.sleep(PAUSE_S)
        if not session.closed:
            await self._hang_up(session, "the gateway is stopping")

    async def _keep(self, session: Session, until: float) -> float:
        """When the seat was kept (loop time); -inf: it was not."""
        kept = await self.keep_seat(session, within=min(KEEP_S, until - self._loop.time()))
        return self._loop.time() if kept else -math.inf

    def _again_at(self, kept_at: float) -> float:
        return self._loop.time() + RETRY_S if kept_at == -math.inf else kept_at + max(self._move_s / 3, RETRY_S)

    async def _quiet(self, session: Session, until: float) -> bool:
        """Wait at most until then (loop time) that nothing is in flight for a client; whether that is so."""
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
            # by `moving` our SDK knows that it has to repeat the call elsewhere
            details = {"may_have_run": True} if call.on_wire else {"may_have_run": False, "moving": True}
            self._calls.settle(call, Unavailable("the gateway is stopping", details=details))
