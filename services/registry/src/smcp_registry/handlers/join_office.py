"""`server:join_office` (events.txt, room events)."""

from typing import Final

from smcp_bus.door.types import Call
from smcp_bus.registry_contract import Joined
from smcp_proto.errors import NotAllowed
from smcp_proto.schemas import EnterOfficeReq
from smcp_registry.admission import Action
from smcp_registry.claims import claim_of
from smcp_registry.membership import named
from smcp_registry.places import Places

LAST_S: Final = 1.2
"""What a last question to the claimant and the answer itself may take (seconds)."""


async def join_office(request: EnterOfficeReq, call: Call, *, places: Places) -> Joined:
    """Claim the place that the subject names.

    Raises:
        Malformed: there is no claim with it.
        NotAllowed: the request speaks of another place than the subject (`details.field`), or the place is
            another's (the message says why).
        Unavailable: no quorum, or the present owner cannot be asked, or the claimant does not say that it means it.
    """
    office, role, name = named(call)
    for field, said, known in (
        ("office_id", request.office_id, office), ("role", request.role, role), ("name", request.name, name),
    ):  # fmt: skip
        if said != known:
            raise NotAllowed(f"{field} is not the sender's own", details={"field": field})
    claim = claim_of(call)
    if claim.capabilities is None and request.capabilities is not None:
        claim = claim.model_copy(update={"capabilities": request.capabilities.model_dump(exclude_unset=True)})
    claimed = await places.claim(office, role, name, claim, until=call.deadline - LAST_S, from_silent=True)
    if claimed.decision.action is Action.REFUSE:
        raise NotAllowed(claimed.decision.why)
    decision = claimed.decision
    unchanged = decision.action is Action.UNCHANGED
    return Joined(revision=claimed.revision, unchanged=unchanged, taken_up=decision.taken_up)
