"""Repairs the gateway's view of its offices after an outage of NATS, in which it may miss notifications and lose seats.

It renews the lease, asserts all members at a registry, disconnects those whose seat was taken, and compares the
registry's list of each office with its roster. Members are notified of the difference.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from smcp_bus.bus import BusError
from smcp_bus.registry_client import AT_ONCE, RegistryClient
from smcp_bus.registry_contract import AssertedMember, Assertion, AssertOutcome, LeaseRenewal, Member, same_tenure
from smcp_gateway.background_tasks import BackgroundTasks
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.rooms.memberships import HangUp, Memberships
from smcp_gateway.rooms.offices import Generations, Office, Offices
from smcp_gateway.rooms.roster import member_keys
from smcp_gateway.sockets.session import Membership, Session, Sessions
from smcp_proto.backoff import Backoff
from smcp_proto.errors import NotInOffice, SmcpError, Unavailable

BATCH: Final = 500
"""Members in one assertion: the registry answers them within one request's time."""
READ_FIRST_S: Final = 0.05
"""Time for the sockets to report who disconnected while this process was suspended."""

_log: Final = logging.getLogger("smcp_gateway.rooms.repair")


@dataclass(eq=False, repr=False)
class Repair:
    registry: RegistryClient
    sessions: Sessions
    offices: Offices
    memberships: Memberships
    computers: ComputerTable
    background: BackgroundTasks
    generations: Generations
    _: KW_ONLY
    describe: Callable[[], LeaseRenewal]
    """Makes the renewal of the lease."""
    hang_up: HangUp

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

    async def _repair(self, generation: int) -> None:
        await self.registry.renew_lease(self.describe())
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

    async def _assert(self, members: list[tuple[Session, Membership]]) -> None:
        gate = self.computers.generation
        records = [asserted(membership, moving=session.leaving or session.moving) for session, membership in members]
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
                await self.hang_up(session, answer.why or "another has its seat")
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
            await office.missed(session)
        if record.claim != membership.claim:
            return True  # it has a newer claim
        self.computers.asserted(session, membership.office, membership.claim, gate, tenure=answer.tenure)
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
        await office.compare(member_keys(room.sessions), generation, capabilities)


def asserted(membership: Membership, *, moving: bool) -> Member:
    office, role, name = membership.seat
    return Member(office=office, role=role, name=name, claim=membership.claim, moving=moving)
