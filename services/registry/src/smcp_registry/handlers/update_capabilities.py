"""`server:update_capabilities` (computer.txt, resources chapter, 4.2)."""

from smcp_bus.bus import Bus
from smcp_bus.door.types import Call
from smcp_proto.schemas import UpdateCapabilitiesReq
from smcp_registry.handlers.update import update
from smcp_registry.membership import Membership, named
from smcp_registry.places import Places


async def update_capabilities(
    request: UpdateCapabilitiesReq, call: Call, *, bus: Bus, membership: Membership, places: Places
) -> None:
    """Keep what the Computer can do now, for `list_room`, and tell the office.

    Raises:
        NotAllowed, NotInOffice, Unavailable: as for `update`; also without quorum.
    """
    office, _, name = named(call)
    if request.computer == name:
        member = await membership.caller(call)
        capabilities = request.capabilities.model_dump(exclude_unset=True)
        await places.amend(office, "computer", name, member.record, capabilities=capabilities)
    await update(request, call, bus=bus, membership=membership)
