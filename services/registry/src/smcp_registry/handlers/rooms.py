"""Handlers of joins, leaves, room lists, and notifications to an office (events.txt; computer.txt, resources); of what
processes say of themselves (`lease`, `assert`); and of what operators ask about all offices.
"""

import asyncio
import heapq
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import orjson
from pydantic import BaseModel, ValidationError

from smcp_bus import registry_contract as contract
from smcp_bus import subjects
from smcp_bus.callers import SeatKey
from smcp_bus.dispatch import Answer, Call, Handler
from smcp_bus.exact_json import SMALL_BYTES
from smcp_bus.headers import AFTER, CLAIM, NOTIFICATION_ID, SUBJECT
from smcp_bus.limits import Buckets, Rate
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_contract import AssertedMember, AssertOutcome
from smcp_bus.tracing import sending
from smcp_proto import schemas
from smcp_proto.catalog import verb_of
from smcp_proto.errors import NOT_A_MEMBER, Malformed, NotAllowed, NotInOffice, RateLimited, SmcpError, Unavailable
from smcp_proto.member_names import Role
from smcp_proto.schemas.rooms import RESTARTS
from smcp_proto.validation import malformed
from smcp_registry.admission import Action
from smcp_registry.audit import Audit
from smcp_registry.leases import PATIENCE_S, Leases
from smcp_registry.member_records import Announce, MemberRecord, held_by, record_key, time_of
from smcp_registry.members_view import Entry, MembersView
from smcp_registry.seats import Seats
from smcp_registry.store import ANSWER_S, AT_ONCE, StoredMember, read_member
from smcp_service.lifecycle import set_within

BURST_S: Final = 5.0
"""So many seconds' worth may come at once: an office of thousands comes back together when its gateway dies."""
MEMBER_SHARE: Final = 5
"""One member may make a fifth of an office's room events: it does not use up those of the others."""
LOOK_S: Final = 0.5
"""How long the store may take to say that a member is too new for the view (seconds)."""
RESERVE_S: Final = 0.2
"""Reserved for an answer itself (seconds)."""
SYNC_S: Final = 1.0
"""How long a request waits for a view that was just lost (seconds); then the old one answers, as without quorum."""


def after(call: Call) -> int:
    value = call.headers.get(AFTER, "0")
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise Malformed(f"the header {AFTER} is not a revision", details={"field": AFTER})
    return int(value)


def claim_of(call: Call) -> contract.Claim:
    header = call.headers.get(CLAIM)
    if header is None or len(header) > SMALL_BYTES:
        raise Malformed(f"the header {CLAIM} is missing or too long", details={"field": CLAIM})
    try:
        return contract.Claim.model_validate_json(header)
    except ValidationError as error:
        why = malformed(error).message
        raise Malformed(f"the header {CLAIM} does not hold a claim: {why}", details={"field": CLAIM}) from None


def _left(call: Call) -> float:
    return max(0.0, call.deadline - asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True)
class Handlers:
    bus: Bus
    seats: Seats
    view: MembersView
    audit: Audit
    leases: Leases

    async def join_office(self, request: schemas.EnterOfficeReq, call: Call) -> contract.Joined:
        seat = call.caller.seat
        self.audit.trail.check()
        if request.office_id != seat[0]:
            raise NotAllowed("office_id is not the sender's own", details={"field": "office_id"})
        claim = claim_of(call)
        if claim.capabilities is None and request.capabilities is not None:
            claim = claim.model_copy(update={"capabilities": contract.capabilities_text(request.capabilities)})
        until = call.deadline - PATIENCE_S - RESERVE_S  # there is time for a last query to the claimant
        decision, stored = await self.seats.claim(seat, claim, until=until, from_silent=True)
        if decision.action is Action.REFUSE:
            holder = decision.holder
            details = {} if holder is None else {"holder": holder.name, "since": time_of(holder.since)}
            raise NotAllowed(decision.why, details=details)
        return contract.Joined(
            revision=stored.revision,
            tenure=stored.tenure,
            unchanged=decision.action is Action.UNCHANGED,
            taken_up=decision.taken_up,
        )

    async def leave_office(self, request: schemas.LeaveOfficeReq, call: Call) -> contract.Left:
        seat = call.caller.seat
        if request.office_id != seat[0]:
            raise NotInOffice(NOT_A_MEMBER, details={"field": "office_id"})
        if seat[1] == "computer" and (request.model_extra or {}).get(RESTARTS) is True:
            return contract.Left(revision=(await self.seats.move(seat, claim_of(call))).revision)
        return contract.Left(revision=await self.seats.release(seat, claim_of(call)))

    async def list_room(self, request: schemas.ListRoomReq, call: Call) -> Answer:
        office, _, _ = call.caller.seat
        await self.settled(call)
        await self.caught_up(after(call), call)
        asker = await self.member(call)
        await self.caught_up(asker.revision, call)
        self.check_not_lost(office)
        sessions = self.view.sessions_json(office, asker.record.owner)
        return Answer(b'{"sessions":%b,"req_id":%b}' % (sessions, orjson.dumps(request.req_id)))

    async def find(self, request: contract.FindComputer, call: Call) -> contract.Found:
        """Asked by a gateway after "no responder"; without quorum it is answered from the view alone."""
        office, role, name = call.caller.seat
        self.check_not_lost(office, role, name)
        # no await since the check: in a view that is emptied in between the member is neither found nor awaited
        seats: tuple[SeatKey, SeatKey] = ((office, role, name), (office, "computer", request.computer))
        in_view = [self.view.member(*seat) for seat in seats]

        async def look(seat: SeatKey, entry: Entry | None) -> MemberRecord | None:
            try:
                async with asyncio.timeout(LOOK_S):
                    entry = entry or await self.stored(*seat)
            except (Unavailable, TimeoutError):
                pass  # the view is all there is
            return None if entry is None else entry.record

        # one after the other they would take twice the time that the store is given
        asker, record = await asyncio.gather(*map(look, seats, in_view))
        if asker is None:
            raise NotInOffice(NOT_A_MEMBER)
        awaited = record_key(office, "computer", request.computer) in self.view.awaited(office)
        return contract.Found(member=record is not None or awaited, moving=record is not None and record.moving)

    async def confirm(self, _: contract.Nothing, call: Call) -> contract.Confirmed:
        """Asked by an owner after its connection broke or it was suspended. The view answers, also without quorum."""
        claim = claim_of(call)
        await self.settled(call)
        entry, upto = self.view.member(*call.caller.seat), self.view.revision
        if entry is None or not held_by(entry.record, claim):
            return contract.Confirmed(mine=False, view=upto)
        return contract.Confirmed(mine=True, tenure=entry.record.tenure, view=upto)

    async def list_offices(self, request: contract.OfficesQuestion, call: Call) -> contract.Offices:
        """For operators: a page of the offices that have members, by name."""
        await self.settled(call)
        view = self.view
        names = heapq.nsmallest(request.limit + 1, (each for each in view.offices if each > request.after))
        page = names[: request.limit]
        return contract.Offices(offices=[self._summary(office) for office in page], more=len(names) > len(page))

    def _summary(self, office: str) -> contract.OfficeSummary:
        members = [each.record for each in self.view.members(office) if each.record.announced]
        agent = next((each for each in members if each.role == "agent"), None)
        name, since = (None, None) if agent is None else (agent.name, time_of(agent.since))
        computers = len(members) - (agent is not None)
        return contract.OfficeSummary(office=office, agent=name, since=since, computers=computers)

    async def show_room(self, request: contract.RoomQuestion, call: Call) -> contract.Room:
        """For operators: a page of the members of an office, Agent first. An office is there while it has members."""
        await self.settled(call)
        self.check_not_lost(request.office)
        records = [entry.record for entry in self.view.members(request.office) if entry.record.announced]
        seat = attrgetter("role", "name")
        records.sort(key=seat)
        behind = records if request.after is None else [each for each in records if seat(each) > request.after]
        page = behind[: request.limit]
        shown = {"role", "name", "a2c_version", "moving"}
        members = [
            contract.RoomMember(since=time_of(each.since), by=each.credential, **each.model_dump(include=shown))
            for each in page
        ]
        return contract.Room(office=request.office, members=members, more=len(behind) > len(page))

    async def update(self, request: BaseModel, call: Call) -> None:
        """Publish the event's notification with the request's own content, unknown fields included. Where it names no
        Computer (`update_tool_list`, an unknown `update_*`), it is the sender: the dispatcher lets no other through."""
        _, _, name = call.caller.seat
        assert call.row.notifies is not None
        field = "computerId" if isinstance(request, schemas.Envelope) else "computer"
        computer = getattr(request, field, None)
        if computer is None and field == "computerId":
            raise Malformed(f"{field}: is missing", details={"field": field})
        await self.member(call)
        if computer is None:
            request = request.model_copy(update={field: name})
        body = request.model_dump_json(exclude_unset=True).encode()
        await self._publish(call, verb_of(call.row.notifies), body)

    async def update_capabilities(self, request: schemas.UpdateCapabilitiesReq, call: Call) -> None:
        member, text = await self.member(call), contract.capabilities_text(request.capabilities)
        await self.seats.amend(call.caller.seat, member.record, capabilities=text)
        await self.update(request, call)

    async def tool_call_cancel(self, request: schemas.AgentCallData, call: Call) -> None:
        """The broadcast is the delivery: owners match `(agent, req_id)`."""
        await self.member(call)
        cancel = schemas.AgentCallData(agent=request.agent, req_id=request.req_id)
        await self._publish(call, "tool_call_cancel", cancel.model_dump_json(exclude_unset=True).encode())

    async def _publish(self, call: Call, verb: str, body: bytes) -> None:
        subject = subjects.notify(call.caller.seat[0], verb)
        # 32 hex digits each: gateways keep the last 64 ids of an office, and a Computer may write any
        kept = {name: call.headers.get(name, "")[:64] for name in (NOTIFICATION_ID, SUBJECT) if name in call.headers}
        with sending(subject) as carried:
            await self.bus.publish(subject, body, headers={**kept, **carried})

    async def lease(self, request: contract.LeaseRenewal, call: Call) -> contract.LeaseState:
        """Renew a lease. A Computer's, which is any on `lease`, has no part in the fair share of gateways."""
        renewal = request if call.row is contract.GATEWAY_LEASE else contract.LeaseRenewal()
        return await self.leases.renew(*_process(call), renewal)

    async def assert_members(self, request: contract.Assertion, call: Call) -> contract.AssertionResult:
        """Decide on each member as on a join. One that is moving is marked as such, and never claims a seat."""
        owner = _process(call)
        await self.settled(call)
        limit = asyncio.Semaphore(AT_ONCE)

        async def decide(member: contract.Member) -> AssertedMember:
            async with limit:
                try:
                    async with asyncio.timeout_at(call.deadline - RESERVE_S):
                        return await self._assert(member, owner, until=call.deadline)
                except (Unavailable, TimeoutError):
                    return AssertedMember(outcome=AssertOutcome.UNAVAILABLE, why="retry")
                except SmcpError as error:
                    return AssertedMember(outcome=AssertOutcome.REFUSED, why=error.message)

        return contract.AssertionResult(members=list(await asyncio.gather(*map(decide, request.members))))

    async def _assert(self, member: contract.Member, owner: tuple[str, str], *, until: float) -> AssertedMember:
        seat, claim = (member.office, member.role, member.name), member.claim
        if (claim.credential, claim.process) != owner:
            raise NotAllowed("a process asserts its own members only")
        if member.moving:
            return _stands(await self.seats.move(seat, claim))
        known = self.view.member(*seat)
        if known is not None and held_by(known.record, claim) and known.record.announced and not known.record.moving:
            return _stands(known)
        decision, stored = await self.seats.claim(seat, claim, until=until)
        if decision.action is Action.REFUSE:
            raise NotAllowed(decision.why)
        if decision.announce in (Announce.ENTER, Announce.LEAVE_ENTER) and stored.record is not None:
            self.audit.seat_changed("join", stored.record, "back")
        return _stands(stored, AssertOutcome.CLAIMED if decision.action is Action.CLAIM else AssertOutcome.UNCHANGED)

    async def settled(self, call: Call) -> None:
        await set_within(min(SYNC_S, _left(call) / 2), self.view.synced)

    async def caught_up(self, revision: int, call: Call) -> None:
        """Wait until the view has this revision, and what this registry has confirmed itself. Raises Unavailable."""
        revision = max(revision, self.seats.store.members.written)
        if not await self.view.reached(revision, min(ANSWER_S, _left(call) * 0.9)):
            raise Unavailable("the registry is behind your view of the office; retry")

    async def member(self, call: Call) -> Entry:
        """The member that the subject names. Raises NotInOffice, Unavailable."""
        office, role, name = call.caller.seat
        self.check_not_lost(office, role, name)
        entry = self.view.member(office, role, name) or await self.stored(office, role, name)
        if entry is None:
            raise NotInOffice(NOT_A_MEMBER)
        return entry

    async def stored(self, office: str, role: Role, name: str) -> Entry | None:
        stored = await read_member(self.seats.store.members, record_key(office, role, name))
        record = stored.record
        if record is None or not record.is_member or record.name != name:
            return None
        return Entry(record, stored.revision)

    def check_not_lost(self, office: str, role: Role | None = None, name: str = "") -> None:
        """Raises Unavailable: NATS lost its store, and this member (if none is named, any of the office) has not
        asserted itself again: "not a member" would make it leave. Check this before the store is read."""
        awaited = self.view.awaited(office)
        if awaited if role is None else record_key(office, role, name) in awaited:
            raise Unavailable("the registry is rebuilding the list of members; retry")


def _stands(stored: Entry | StoredMember, outcome: AssertOutcome = AssertOutcome.UNCHANGED) -> AssertedMember:
    tenure = None if stored.record is None else stored.record.tenure
    return AssertedMember(outcome=outcome, revision=stored.revision, tenure=tenure)


def _process(call: Call) -> tuple[str, str]:
    credential, process = call.caller.name or "", call.caller.session
    if not re.fullmatch(contract.PROCESS, process):
        raise Malformed("a process is named by letters, digits, _ and -", details={"field": "process"})
    return credential, process


class RoomRate:
    """Limits what one office, and one member, may ask of this registry (`per_s`: of an office; 0: unlimited). Leaves
    and cancels are let through: they follow joins and calls, and end something."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._offices = Buckets(Rate(per_s, BURST_S), clock)
        self._members = Buckets(Rate(per_s / MEMBER_SHARE, BURST_S), clock)
        self.refused = 0

    def before(self, handler: Handler) -> Handler:
        """Put the limit before a handler. It raises RateLimited (`details.retry_after_s`)."""

        async def limited(request: Any, call: Call) -> Any:
            office, role, name = call.caller.seat
            if wait := self._members.take(record_key(office, role, name)) or self._offices.take(office):
                self.refused += 1
                wait = math.ceil(wait * 1000) / 1000
                details = {"quota": "registry_room_events_per_s", "limit": self._per_s, "retry_after_s": wait}
                raise RateLimited("too many joins, updates and lists in this office", details=details)
            return await handler(request, call)

        return limited
