"""Asserts members at the registry: before a client is sent away, so that its seat is kept, and after an outage of NATS.
Then it also disconnects those whose seat was taken, and notifies members of what the lists of their offices tell anew.
"""

import asyncio
import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from smcp_bus.bus import BusError
from smcp_bus.registry_client import AT_ONCE, RegistryClient
from smcp_bus.registry_contract import AssertedMember, Assertion, AssertOutcome, LeaseRenewal, Member, same_tenure
from smcp_gateway.background_tasks import BackgroundTasks
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.rooms.memberships import Memberships
from smcp_gateway.rooms.offices import Generations, Office, Offices, member_keys
from smcp_gateway.sockets.session import Membership, Session, Sessions
from smcp_gateway.sockets.socketio_server import SocketIoServer
from smcp_proto.backoff import Backoff
from smcp_proto.errors import NotInOffice, SmcpError, Unavailable

BATCH: Final = 500
"""Members in one assertion: the registry answers them within one request's time."""
READ_FIRST_S: Final = 0.05
"""Time for the sockets to report who disconnected while this process was suspended."""
KEEP_S: Final = 8.0
"""How long the registry may take to keep a seat (seconds), retries included: in a drain many ask at once."""
PAUSE_S: Final = 0.1
"""Before a seat that no registry could keep is asked for again."""

_log: Final = logging.getLogger("smcp_gateway.rooms.repair")


@dataclass(eq=False, repr=False)
class Repair:
    registry: RegistryClient
    sessions: Sessions
    transport: SocketIoServer
    offices: Offices
    memberships: Memberships
    computers: ComputerTable
    background: BackgroundTasks
    generations: Generations
    kept: int = field(default=0, init=False)
    """Seats that the registry kept for clients that were sent away."""
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False)

    async def run(self) -> None:
        """Repair whenever it is wanted, until cancelled; retry after a failure."""
        backoff = Backoff(first_s=0.2, longest_s=2.0)
        while True:
            generation = await self.generations.wanted()
            try:
                await self._repair(generation)
            except (BusError, SmcpError) as error:
                _log.warning("the offices are not repaired yet: %s", type(error).__name__)
                await asyncio.sleep(backoff.next())
                self.generations.want()
            else:
                backoff.reset()

    def assert_soon(self, session: Session) -> None:
        """Assert the member of one session in the background, again until the registry holds it as it is here."""

        async def work() -> None:
            if session.membership is not None:
                await self._assert([(session, session.membership)])

        self.background.until_done("asserting a member", work)

    async def keep_seat(self, session: Session, *, within: float = KEEP_S) -> bool:
        """Have the registry keep a member's seat. False: it failed, and the member leaves when it disconnects."""
        try:
            async with asyncio.timeout(within), self._limit:
                while (membership := session.membership) is not None:
                    with suppress(BusError, SmcpError):
                        await self._assert([(session, membership)], moves=True)
                        if session.membership is membership:
                            session.moving = True
                            self.kept += 1
                            break
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            _log.warning("a member's seat cannot be kept in time", extra={"session": session.id})
            return False
        return True

    async def _repair(self, generation: int) -> None:
        await self.registry.renew_lease(LeaseRenewal(sockets=len(self.sessions), accepting=not self.transport.draining))
        # After a suspension of this process, read first which clients have disconnected.
        await asyncio.sleep(READ_FIRST_S)
        members = [(session, session.membership) for session in self.sessions.members() if session.membership]
        for start in range(0, len(members), BATCH):
            await self._assert(members[start : start + BATCH])
        limit = asyncio.Semaphore(AT_ONCE)

        async def compare(office: Office) -> None:
            async with limit:
                await self._compare(office, generation)

        outcomes = await asyncio.gather(*(compare(office) for office in self.offices), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        _log.info("repaired", extra={"members": len(members), "offices": len(outcomes)})

    async def _assert(self, members: list[tuple[Session, Membership]], *, moves: bool = False) -> None:
        gate = self.computers.ownership.generation
        records = [
            _record(membership, moving=moves or session.leaving or session.moving) for session, membership in members
        ]
        ending = [membership.ending for _, membership in members]
        result = await self.registry.assert_members(Assertion(members=records))
        again = 0
        for (session, membership), record, leaves, answer in zip(members, records, ending, result.members, strict=True):
            if session.membership is not membership:
                continue
            if answer.outcome is AssertOutcome.REFUSED:
                # a refusal counts only for a member that is not leaving and has the same claim
                if leaves or membership.ending or record.claim != membership.claim:
                    again += 1
                    continue
                await self.memberships.lost(session)
                await self.transport.hang_up(session, answer.why or "another has its seat")
            else:
                again += await self._settle(session, membership, record, answer, gate)
        if again:
            raise Unavailable(f"{again} members could not be asserted yet")

    async def _settle(
        self, session: Session, membership: Membership, record: Member, answer: AssertedMember, gate: int
    ) -> bool:
        """True: ask again. `gate` is the generation of the Computers' ownership when it was asked."""
        unchanged = answer.outcome is AssertOutcome.UNCHANGED
        known = max(membership.revision, membership.ended_by // 2)
        if answer.outcome is AssertOutcome.UNAVAILABLE or (unchanged and answer.revision < known):
            return True  # undecided, or the registry has not seen its leave or move yet
        membership.revision = max(membership.revision, answer.revision)
        # the tenure tells, not the outcome: an earlier copy whose answer was lost may have claimed it
        kept, membership.tenure = same_tenure(membership.tenure, answer.tenure), answer.tenure
        if not kept and (office := self.offices.get(membership.office)) is not None:
            office.missed(session)
        if record.claim != membership.claim:
            return True  # it has a newer claim
        self.computers.granted(session, membership.office, membership.claim, gate, tenure=answer.tenure)
        return False

    async def _compare(self, office: Office, generation: int) -> None:
        asker = next(iter(office.members.items()), None)
        if asker is None or office.compared >= generation:
            return
        session, membership = asker
        office.roster.ask()
        after = max(membership.revision, office.roster.revision)
        try:
            room = await self.registry.room(*membership.seat, after=after, req_id=uuid.uuid4().hex)
        except NotInOffice:
            if session in office.members:
                raise Unavailable("the registry's view is behind") from None
            return
        capabilities = {each.name: each.capabilities for each in room.sessions if each.role == "computer" and each.name}
        office.compare(member_keys(room.sessions), generation, capabilities)


def _record(membership: Membership, *, moving: bool) -> Member:
    office, role, name = membership.seat
    return Member(office=office, role=role, name=name, claim=membership.claim, moving=moving)
