"""`server:leave_office` (events.txt, room events)."""

from smcp_bus.door.types import Call
from smcp_bus.registry_contract import Left
from smcp_proto.errors import NotInOffice
from smcp_proto.schemas import LeaveOfficeReq
from smcp_registry.claims import claim_of
from smcp_registry.membership import named
from smcp_registry.places import Places


async def leave_office(request: LeaveOfficeReq, call: Call, *, places: Places) -> Left:
    """Give the place up that the subject names.

    Raises:
        Malformed: there is no claim with it.
        NotInOffice: the claim is not the member there, or the request is about another office.
        Unavailable: no quorum.
    """
    office, role, name = named(call)
    if request.office_id != office:
        raise NotInOffice("not in this office", details={"field": "office_id"})
    return Left(revision=await places.release(office, role, name, claim_of(call)))
