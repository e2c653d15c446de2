"""Joins and leaves of this gateway's sessions, decided by the registry; their seats are asserted there after an outage.

The calls of sessions that end are cancelled.
"""

import asyncio
import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import orjson

from smcp_bus import registry_contract as contract
from smcp_bus.bus import BusError, ConnectionLost, TransferFailed
from smcp_bus.callers import SeatKey
from smcp_bus.dispatch import Call
from smcp_bus.owner import ABSENT_S
from smcp_bus.registry_client import AT_ONCE, RegistryClient
from smcp_bus.registry_contract import Claim, Joined, capabilities_text
from smcp_gateway.audit import Audit, LeftMeanwhile
from smcp_gateway.background_tasks import BackgroundTasks
from smcp_gateway.calls import CallTable, PendingCall
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.rooms.offices import Generations, Office, Offices, member_keys
from smcp_gateway.sockets.session import Membership, Session, Sessions
from smcp_gateway.sockets.socketio_server import SocketIoServer
from smcp_proto.backoff import Backoff
from smcp_proto.errors import NOT_A_MEMBER, NotAllowed, NotInOffice, SmcpError, Unavailable
from smcp_proto.schemas import EnterOfficeReq
from smcp_service.lifecycle import set_within

BATCH: Final = 500
"""Members in one assertion: the registry answers them within one request's time."""
READ_FIRST_S: Final = 0.05
"""Time for the sockets to report who disconnected while this process was suspended."""
KEEP_S: Final = 8.0
"""How long the registry may take to keep a seat (seconds), retries included: in a drain many ask at once."""
PAUSE_S: Final = 0.1
"""Seconds before a seat is asked for again that no registry could keep."""

_log: Final = logging.getLogger("smcp_gateway.rooms.memberships")


@dataclass(eq=False, repr=False)
class Memberships:
    registry: RegistryClient
    transport: SocketIoServer
    offices: Offices
    computers: ComputerTable
    background: BackgroundTasks
    calls: CallTable
    generations: Generations
    audit: Audit
    taken_up: int = field(default=0, init=False)
    """Members that came here from another gateway, or came back, and kept their seats."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def join(self, session: Session, request: EnterOfficeReq, body: bytes, call: Call) -> None:
        """Make `session` a member, or change nothing. A switch claims the new seat without an announcement, leaves the
        old one, and has the new one announced. A client that loses its new seat in between is disconnected (ADR 0012).

        Raises NotAllowed (the seat is another's, or an Agent would switch), Unavailable, BusError.
        """
        present = session.membership
        if present is not None and present.office == request.office_id:
            session.joined_as = "unchanged"
            return
        if present is not None and session.role == "agent":
            why = "this Agent is already in an office; leave it first"
            raise NotAllowed(why, details={"field": "office_id"})
        seat: SeatKey = (request.office_id, request.role, request.name)
        claim = self._claim_for(session, request, announce=present is None)
        office = await self.offices.hold(request.office_id)
        office.arriving[session] = []
        session.joining = seat, claim.incarnation
        generation, gate = self.generations.current, self.computers.ownership.generation
        claimed = False
        try:
            if request.role == "computer":  # its subject is served before others learn of it
                await self.computers.serve(session, office.name, request.name)
            joined = await self._claim(office, seat, claim, body, call.req_id)
            claimed = True
            if present is not None:
                await self.leave(session, present.office, call)
                claim = claim.model_copy(update={"announce": True})
                try:
                    await self.registry.join(seat, claim, body, req_id=call.req_id)
                except (BusError, Unavailable):  # it has left the old office already
                    self.generations.want()  # the repair asserts it, which announces it
        except BaseException as error:
            await self._undo(session, office, seat, claim if claimed or may_have_run(error) else None)
            if present is not None and session.membership is None and isinstance(error, Exception):
                await self.transport.hang_up(session, "it is in no office after a switch that failed")
            raise
        self.taken_up += joined.taken_up
        known_before = joined.taken_up or joined.unchanged  # unchanged: an earlier copy took it up
        self.computers.granted(session, office.name, claim, gate, tenure=joined.tenure, moved=known_before)
        session.joining = None
        session.role, session.name = request.role, request.name
        session.joined_as = "moved" if joined.taken_up else "ok"
        session.membership = Membership(seat, joined.revision, claim, generation, joined.tenure)
        office.admit(session, session.membership)
        if session.closed:
            self.gone(session, goodbye=True)

    async def leave(self, session: Session, office_id: str, asked: Call) -> None:
        """End the membership of `session`; its calls that still run are cancelled, its other requests get 4103.

        Raises NotInOffice, or Unavailable and BusError: it cannot be done now, and it stays a member.
        """
        membership = session.membership
        if membership is None or membership.office != office_id:
            raise NotInOffice(NOT_A_MEMBER, details={"field": "office_id"})
        membership.ending = True
        try:
            calls = self.calls.of_session(session.id)
            for call in calls:
                if not call.tracked:  # one that is tried again must not run for the next member of this name
                    self.calls.settle(call, LeftMeanwhile())
            await self._cancel(session, membership, calls)
            await self._release(membership.seat, membership.claim, asked.req_id)
        except BaseException as error:
            membership.ending = False
            if may_have_run(error):
                self.generations.want()  # the repair asserts it, if it was carried out after all
            raise
        self.audit.left(session, membership.seat, "ok", asked)
        if session.membership is membership:
            await self.lost(session)

    def gone(self, session: Session, *, goodbye: bool) -> None:
        """The client has disconnected: cancel its calls, then end its membership. An Agent whose connection broke (no
        `goodbye`) has `ABSENT_S` to come back and repeat its calls; until then its seat is free for another."""
        calls = self.calls.abandon(session.id)
        lost_at = None if goodbye else asyncio.get_running_loop().time()
        membership = session.membership
        if membership is None:
            return
        office = self._forget(session, membership)
        kept = session.moving and (session.restarts or not goodbye)
        if not (kept or membership.ending):
            self.audit.left(session, membership.seat, "disconnected")

        async def end() -> None:
            await self._cancel_orphaned(session, membership, calls, lost_at)
            if not kept:
                await self._release(membership.seat, membership.claim)
            if office is not None:
                await self.offices.release(office)

        self.background.until_done("telling of a member that left", end)

    async def _claim(self, office: Office, seat: SeatKey, claim: Claim, body: bytes, req_id: str) -> Joined:
        """Claim the seat, and load the roster with the first session of an office: an outage is compared with it."""
        joined = await self.registry.join(seat, claim, body, req_id=req_id)
        if not office.roster.known:
            try:
                async with asyncio.timeout(self.registry.room_s), office.lock:  # others wait for the first list
                    if not office.roster.known:
                        room = await self.registry.room(seat, after=joined.revision, req_id=req_id)
                        office.roster.learn(member_keys(room.sessions))
            except (SmcpError, BusError, TimeoutError) as error:  # although the seat is claimed
                raise Unavailable("no registry says who is in the office", details={"may_have_run": True}) from error
        return joined

    async def lost(self, session: Session) -> None:
        membership = session.membership
        if membership is None:
            return  # it disconnected meanwhile: `gone` did this
        office = self._forget(session, membership)
        if office is not None:
            await self.offices.release(office)

    def _forget(self, session: Session, membership: Membership) -> Office | None:
        session.membership = None
        self.computers.close(session, membership.office)
        office = self.offices.get(membership.office)
        if office is not None:
            office.members.pop(session, None)
        return office

    async def _release(self, seat: SeatKey, claim: Claim, req_id: str = "") -> None:
        with suppress(NotInOffice):  # another has the seat already, or the lease expired
            await self.registry.leave(seat, claim, req_id=req_id)

    async def _undo(self, session: Session, office: Office, seat: SeatKey, claim: Claim | None) -> None:
        """A join failed. `claim`: the one that was granted or may have been; None: none was."""
        office.arriving.pop(session, None)
        session.joining = None
        self.computers.close(session, office.name)
        if claim is None:
            await self.offices.release(office)
            return

        async def undo() -> None:
            await self._release(seat, claim)
            await self.offices.release(office)

        self.background.until_done("giving up a claim", undo)

    async def _cancel_orphaned(
        self, session: Session, membership: Membership, calls: list[PendingCall], lost_at: float | None
    ) -> None:
        """Cancel the calls of a session that is gone, unless the Agent comes back or the gateway stops. `lost_at`: when
        its connection broke (loop time); None: it said goodbye. Raises Unavailable, BusError."""
        if not any(call.tracked for call in calls):
            return
        if lost_at is not None:
            absent_s = lost_at + ABSENT_S - asyncio.get_running_loop().time()
            if await set_within(absent_s, self.stopping):
                return
        if await self._is_free(membership):
            await self._cancel(session, membership, calls)

    async def _cancel(self, session: Session, membership: Membership, calls: list[PendingCall]) -> None:
        _, role, name = membership.seat
        for call in calls:
            if role != "agent" or not call.tracked:
                continue
            body = orjson.dumps({"agent": name, "req_id": call.req_id})
            with suppress(NotInOffice):  # the registry has let it go already
                await self.registry.tell(membership.seat, "tool_call_cancel", body, caller=call.subject)
            self.calls.cancel(session.id, call.req_id, now=asyncio.get_running_loop().time())

    async def _is_free(self, membership: Membership) -> bool:
        """Whether nobody has the seat of a session that is gone. Who came back under its name may have its calls."""
        office = self.offices.get(membership.office)
        if office is not None and any(other.seat == membership.seat for other in office.members.values()):
            return False
        found = await self.registry.confirm(membership.seat, membership.claim)
        return found.mine or found.view < membership.revision

    def _claim_for(self, session: Session, request: EnterOfficeReq, *, announce: bool) -> Claim:
        capabilities = request.capabilities
        if session.principal is not None:
            identity = session.principal.identity
        else:
            seat = orjson.dumps([request.office_id, request.role, request.name])
            identity = blake2b(seat, digest_size=16).hexdigest()
        return Claim(
            session=session.id,
            credential=self.registry.credential,
            process=self.registry.process,
            incarnation=uuid.uuid4().hex,
            identity=identity,
            a2c_version=session.a2c_version,
            announce=announce,
            capabilities=None if capabilities is None else capabilities_text(capabilities),
        )


def may_have_run(error: BaseException) -> bool:
    if isinstance(error, SmcpError):
        return bool(error.details.get("may_have_run", isinstance(error, Unavailable)))
    cancelled = not isinstance(error, Exception)
    return cancelled or isinstance(error, ConnectionLost | TransferFailed)


@dataclass(eq=False, repr=False)
class Repair:
    """Asserts members at the registry: before a client is sent away, so that its seat is kept, and after an outage; it
    then disconnects those whose seat was taken, and notifies members of what the lists of their offices tell anew."""

    sessions: Sessions
    memberships: Memberships
    kept: int = field(default=0, init=False)
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False)

    async def run(self) -> None:
        backoff = Backoff(first_s=0.2, longest_s=2.0)
        while True:
            generation = await self.memberships.generations.wanted()
            try:
                await self._repair(generation)
            except (BusError, SmcpError) as error:
                _log.warning("the offices are not repaired yet: %s", type(error).__name__)
                await asyncio.sleep(backoff.next())
                self.memberships.generations.want()
            else:
                backoff.reset()

    def assert_soon(self, session: Session) -> None:
        """Assert the member of one session in the background, again until the registry holds it as it is here."""

        async def work() -> None:
            if session.membership is not None:
                await self._assert([(session, session.membership)])

        self.memberships.background.until_done("asserting a member", work)

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
        await self.memberships.registry.renew_lease(
            contract.LeaseRenewal(sockets=len(self.sessions), accepting=not self.memberships.transport.draining)
        )
        # After a suspension of this process, read first which clients have disconnected.
        await asyncio.sleep(READ_FIRST_S)
        members = [(session, session.membership) for session in self.sessions.members() if session.membership]
        for start in range(0, len(members), BATCH):
            await self._assert(members[start : start + BATCH])
        limit = asyncio.Semaphore(AT_ONCE)

        async def compare(office: Office) -> None:
            async with limit:
                await self._compare(office, generation)

        outcomes = await asyncio.gather(
            *(compare(office) for office in self.memberships.offices), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        _log.info("repaired", extra={"members": len(members), "offices": len(outcomes)})

    async def _assert(self, members: list[tuple[Session, Membership]], *, moves: bool = False) -> None:
        gate = self.memberships.computers.ownership.generation
        records = [
            _record(membership, moving=moves or session.leaving or session.moving) for session, membership in members
        ]
        ending = [membership.ending for _, membership in members]
        result = await self.memberships.registry.assert_members(contract.Assertion(members=records))
        again = 0
        for (session, membership), record, leaves, answer in zip(members, records, ending, result.members, strict=True):
            if session.membership is not membership:
                continue
            if answer.outcome is contract.AssertOutcome.REFUSED:
                # a refusal counts only for a member that is not leaving and has the same claim
                if leaves or membership.ending or record.claim != membership.claim:
                    again += 1
                    continue
                await self.memberships.lost(session)
                await self.memberships.transport.hang_up(session, answer.why or "another has its seat")
            else:
                again += await self._settle(session, membership, record, answer, gate)
        if again:
            raise Unavailable(f"{again} members could not be asserted yet")

    async def _settle(
        self,
        session: Session,
        membership: Membership,
        record: contract.Member,
        answer: contract.AssertedMember,
        gate: int,
    ) -> bool:
        """True: ask again. `gate` is the generation of the Computers' ownership when it was asked."""
        unchanged = answer.outcome is contract.AssertOutcome.UNCHANGED
        known = max(membership.revision, membership.ended_by // 2)
        if answer.outcome is contract.AssertOutcome.UNAVAILABLE or (unchanged and answer.revision < known):
            return True  # undecided, or the registry has not seen its leave or move yet
        membership.revision = max(membership.revision, answer.revision)
        # not by the outcome: an earlier attempt of this request, whose answer was lost, may have claimed the seat
        kept, membership.tenure = contract.same_tenure(membership.tenure, answer.tenure), answer.tenure
        if not kept and (office := self.memberships.offices.get(membership.office)) is not None:
            office.missed(session)
        if record.claim != membership.claim:
            return True  # it has a newer claim
        self.memberships.computers.granted(session, membership.office, membership.claim, gate, tenure=answer.tenure)
        return False

    async def _compare(self, office: Office, generation: int) -> None:
        asker = next(iter(office.members.items()), None)
        if asker is None or office.compared >= generation:
            return
        session, membership = asker
        office.roster.ask()
        after = max(membership.revision, office.roster.revision)
        try:
            room = await self.memberships.registry.room(membership.seat, after=after, req_id=uuid.uuid4().hex)
        except NotInOffice:
            if session in office.members:
                raise Unavailable("the registry's view is behind") from None
            return
        capabilities = {each.name: each.capabilities for each in room.sessions if each.role == "computer" and each.name}
        office.compare(member_keys(room.sessions), generation, capabilities)


def _record(membership: Membership, *, moving: bool) -> contract.Member:
    office, role, name = membership.seat
    return contract.Member(office=office, role=role, name=name, claim=membership.claim, moving=moving)
