"""What owner processes say of themselves: `lease` (it lives) and `assert` (which members it holds)."""

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
from smcp_registry.handlers.caller import Callers, check_claim, check_process
from smcp_registry.leases import Leases
from smcp_registry.seats import Seats
from smcp_registry.view import MembersView

AT_ONCE: Final = 16
RESERVE_S: Final = 0.2
"""What is left of the time for the answer itself (seconds)."""

OUTCOMES: Final = {
    Action.REFUSE: AssertOutcome.REFUSED,
    Action.UNCHANGED: AssertOutcome.UNCHANGED,
    Action.CLAIM: AssertOutcome.CLAIMED,
}


async def lease(request: LeaseRenewal, call: Call, *, leases: Leases) -> LeaseState:
    """Renew the lease of the process that the subject names. Raises Unavailable without quorum."""
    credential, process = _host(call)
    return await leases.renew(credential, process, request)


async def assert_members(
    request: Assertion, call: Call, *, seats: Seats, view: MembersView, callers: Callers
) -> AssertionResult:
    """Decide on each member as on a join; one that stands as asserted is passed over in silence.

    One that is moving is marked as such, and never claims a seat: it is on its way out.
    """
    owner = _host(call)
    await callers.settled(call)
    limit = asyncio.Semaphore(AT_ONCE)

    async def decide(member: Member) -> AssertedMember:
        async with limit:
            try:
                async with asyncio.timeout_at(call.deadline - RESERVE_S):
                    return await _assert(member, owner, seats=seats, view=view, until=call.deadline)
            except (Unavailable, TimeoutError):
                return AssertedMember(outcome=AssertOutcome.UNAVAILABLE, why="ask again")
            except Malformed as error:
                return AssertedMember(outcome=AssertOutcome.REFUSED, why=error.message)

    return AssertionResult(members=list(await asyncio.gather(*map(decide, request.members))))


async def _assert(
    member: Member, owner: tuple[str, str], *, seats: Seats, view: MembersView, until: float
) -> AssertedMember:
    seat, claim = (member.office, member.role, member.name), member.claim
    check_claim(claim)
    if (claim.credential, claim.process) != owner:
        return AssertedMember(outcome=AssertOutcome.REFUSED, why="a process asserts its own members only")
    if member.moving:
        try:
            stored = await seats.move(*seat, claim)
            return AssertedMember(outcome=AssertOutcome.UNCHANGED, revision=stored.revision, tenure=stored.tenure)
        except NotInOffice:
            return AssertedMember(outcome=AssertOutcome.REFUSED, why="it is no member any more")
    known = view.member(*seat)
    if known is not None and known.holds(claim) and known.record.announced and not known.record.moving:
        return AssertedMember(outcome=AssertOutcome.UNCHANGED, revision=known.revision, tenure=known.record.tenure)
    claimed = await seats.claim(*seat, claim, until=until)
    return AssertedMember(
        outcome=OUTCOMES[claimed.decision.action],
        revision=claimed.stored.revision,
        tenure=claimed.stored.tenure,
        why=claimed.decision.why or None,
    )


def _host(call: Call) -> tuple[str, str]:
    """Credential and process from the subject; raises Malformed where it names none."""
    credential, process = call.caller.name, call.caller.session
    if credential is None:
        raise Malformed("the subject names no credential")
    check_process(credential, process)
    return credential, process
