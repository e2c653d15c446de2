"""`lease`: a process says that it lives."""

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
from smcp_proto.errors import Malformed, NotInOffice, Unavailable
from smcp_registry.admission import Action
from smcp_registry.handlers.caller import Membership, check_claim, check_process
from smcp_registry.leases import Leases
from smcp_registry.seats import Seats
from smcp_registry.view import MembersView


async def lease(request: LeaseRenewal, call: Call, *, leases: Leases) -> LeaseState:
    """Renew the lease of the process that the subject names.

    Raises:
        Malformed: the subject names no process.
        Unavailable: no quorum.
    """
    credential, process = host(call)
    return await leases.renew(credential, process, request)


def host(call: Call) -> tuple[str, str]:
    """Credential and process from the subject."""
    credential, process = call.caller.name, call.caller.session
    if credential is None:
        raise Malformed("the subject names no credential")
    check_process(credential, process)
    return credential, process


AT_ONCE: Final = 16
RESERVE_S: Final = 0.2
"""What is left of the time for the answer itself (seconds)."""


async def assert_members(
    request: Assertion, call: Call, *, seats: Seats, view: MembersView, membership: Membership
) -> AssertionResult:
    """Decide on each member as on a join; one that stands as asserted is passed over in silence.

    One that is moving is marked as such, and never claims a place: it is on its way out.

    Raises:
        Malformed: the subject names no process.
    """
    owner = host(call)
    await membership.settled(call)
    limit = asyncio.Semaphore(AT_ONCE)

    async def decide(member: Member) -> AssertedMember:
        async with limit:
            try:
                async with asyncio.timeout_at(call.deadline - RESERVE_S):
                    return await _assert(member, owner, seats=seats, view=view, until=call.deadline)
            except (Unavailable, TimeoutError):
                return AssertedMember(outcome=AssertOutcome.UNAVAILABLE, revision=0, why="ask again")
            except Malformed as error:
                return AssertedMember(outcome=AssertOutcome.REFUSED, revision=0, why=error.message)

    return AssertionResult(members=list(await asyncio.gather(*map(decide, request.members))))


async def _assert(
    member: Member, owner: tuple[str, str], *, seats: Seats, view: MembersView, until: float
) -> AssertedMember:
    claim = member.claim
    check_claim(claim)
    if (claim.credential, claim.process) != owner:
        return AssertedMember(outcome=AssertOutcome.REFUSED, revision=0, why="a process asserts its own members only")
    if member.moving:
        return await _move(member, seats=seats)
    known = view.member(member.office, member.role, member.name)
    if known is not None and known.holds(claim) and known.record.announced and known.record.moving_until is None:
        return AssertedMember(outcome=AssertOutcome.UNCHANGED, revision=known.revision)
    claimed = await seats.claim(member.office, member.role, member.name, claim, until=until)
    match claimed.decision.action:
        case Action.REFUSE:
            return AssertedMember(outcome=AssertOutcome.REFUSED, revision=0, why=claimed.decision.why)
        case Action.UNCHANGED:
            return AssertedMember(outcome=AssertOutcome.UNCHANGED, revision=claimed.revision)
        case _:
            return AssertedMember(outcome=AssertOutcome.CLAIMED, revision=claimed.revision)


async def _move(member: Member, *, seats: Seats) -> AssertedMember:
    try:
        revision = await seats.move(member.office, member.role, member.name, member.claim)
    except NotInOffice:
        return AssertedMember(outcome=AssertOutcome.REFUSED, revision=0, why="it is no member any more")
    return AssertedMember(outcome=AssertOutcome.UNCHANGED, revision=revision)
