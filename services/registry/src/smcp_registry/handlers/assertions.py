"""Handlers of what a process says of itself: `lease` (that it lives) and `assert` (which members it holds)."""

import asyncio
from typing import Final

from smcp_bus.dispatch import Call
from smcp_bus.registry_contract import (
    AssertedMember,
    Assertion,
    AssertionResult,
    AssertOutcome,
    LeaseRenewal,
    LeaseState,
    Member,
)
from smcp_proto.errors import NotAllowed, SmcpError, Unavailable
from smcp_registry.admission import Action
from smcp_registry.audit import Audit
from smcp_registry.handlers.caller import Callers, check_claim, check_process
from smcp_registry.leases import Leases
from smcp_registry.member_records import Announce
from smcp_registry.members_view import Entry, MembersView
from smcp_registry.seats import Seats
from smcp_registry.store import StoredMember

MAX_CONCURRENT_DECISIONS: Final = 16
"""Members of one assertion that are decided on at a time."""
RESERVE_S: Final = 0.2
"""Reserved for the answer to an assertion (seconds)."""


async def lease(request: LeaseRenewal, call: Call, *, leases: Leases) -> LeaseState:
    """Renew the lease of a Computer, which has no part in the fair share of gateways; or of a gateway of an older
    release, which knows no `gateway_lease`."""
    return await leases.renew(*_process(call), LeaseRenewal(members=request.members))


async def gateway_lease(request: LeaseRenewal, call: Call, *, leases: Leases) -> LeaseState:
    """Renew the lease of a gateway: nats-server lets nobody else publish on this subject."""
    return await leases.renew(*_process(call), request)


async def assert_members(
    request: Assertion, call: Call, *, seats: Seats, callers: Callers, audit: Audit
) -> AssertionResult:
    """Decide on each member as on a join; nothing is announced of one that stands as asserted.

    One that is moving is marked as such, and never claims a seat: it is on its way out.
    """
    owner = _process(call)
    await callers.settled(call)
    limit = asyncio.Semaphore(MAX_CONCURRENT_DECISIONS)

    async def decide(member: Member) -> AssertedMember:
        async with limit:
            try:
                async with asyncio.timeout_at(call.deadline - RESERVE_S):
                    return await _assert(
                        member, owner, seats=seats, view=callers.view, audit=audit, until=call.deadline
                    )
            except (Unavailable, TimeoutError):
                return AssertedMember(outcome=AssertOutcome.UNAVAILABLE, why="ask again")
            except SmcpError as error:
                return AssertedMember(outcome=AssertOutcome.REFUSED, why=error.message)

    return AssertionResult(members=list(await asyncio.gather(*map(decide, request.members))))


async def _assert(
    member: Member, owner: tuple[str, str], *, seats: Seats, view: MembersView, audit: Audit, until: float
) -> AssertedMember:
    seat, claim = (member.office, member.role, member.name), member.claim
    check_claim(claim)
    if (claim.credential, claim.process) != owner:
        raise NotAllowed("a process asserts its own members only")
    if member.moving:
        return _stands(await seats.move(*seat, claim))
    known = view.member(*seat)
    if known is not None and known.holds(claim) and known.record.announced and not known.record.moving:
        return _stands(known)
    decision, stored = await seats.claim(*seat, claim, until=until)
    if decision.action is Action.REFUSE:
        raise NotAllowed(decision.why)
    if decision.announce in (Announce.ENTER, Announce.LEAVE_ENTER) and stored.record is not None:
        audit.back(stored.record)
    return _stands(stored, AssertOutcome.CLAIMED if decision.action is Action.CLAIM else AssertOutcome.UNCHANGED)


def _stands(stored: Entry | StoredMember, outcome: AssertOutcome = AssertOutcome.UNCHANGED) -> AssertedMember:
    tenure = None if stored.record is None else stored.record.tenure
    return AssertedMember(outcome=outcome, revision=stored.revision, tenure=tenure)


def _process(call: Call) -> tuple[str, str]:
    credential, process = call.caller.name or "", call.caller.session
    check_process(credential, process)
    return credential, process
