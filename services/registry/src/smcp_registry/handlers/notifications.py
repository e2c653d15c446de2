"""`server:update_*` and `server:resources/*`: what a Computer tells its office (events.txt, configuration and state;
computer.txt, resources chapter)."""

from typing import Final

from pydantic import BaseModel

from smcp_bus import subjects
from smcp_bus.bus import Bus
from smcp_bus.dispatch import Call
from smcp_bus.tracing import sending
from smcp_proto.catalog import verb_of
from smcp_proto.errors import Malformed, NotAllowed
from smcp_proto.schemas import AgentCallData, Envelope, UpdateCapabilitiesReq
from smcp_proto.schemas.resources import MISSED
from smcp_registry.handlers.caller import Membership, named
from smcp_registry.seats import Seats

GATEWAYS_OWN: Final = {MISSED}


async def update(request: BaseModel, call: Call, *, bus: Bus, membership: Membership) -> None:
    """Publish the event's notification with the request's own content, unknown fields included, but for that which only
    gateways say.

    Where a page lets the Computer's name out (`update_tool_list`, data-structures.txt, UpdateToolListNotification), or
    there is no page (an unknown `update_*`), it is the sender's: the office is told of whom it hears.

    Raises:
        Malformed: an envelope names no Computer, or the event is none that the office is told of.
        NotAllowed: it speaks for another Computer.
        NotInOffice: the sender is no member.
        Unavailable: the sender's membership cannot be looked up now.
    """
    office, _, name = named(call)
    if call.row.notifies is None:
        raise Malformed(f"{call.row.event} tells nobody")
    field = "computerId" if isinstance(request, Envelope) else "computer"
    computer = getattr(request, field, None)
    if computer is None and field == "computerId":
        raise Malformed(f"{field}: is missing", details={"field": field})
    if computer is not None and computer != name:
        raise NotAllowed("a Computer speaks for itself only", details={"field": field})
    await membership.caller(call)
    if computer is None:
        request = request.model_copy(update={field: name})
    body = request.model_dump_json(exclude_unset=True, exclude=GATEWAYS_OWN).encode()
    subject = subjects.notify(office, verb_of(call.row.notifies))
    with sending(subject) as headers:
        await bus.publish(subject, body, headers=headers)


async def update_capabilities(
    request: UpdateCapabilitiesReq, call: Call, *, bus: Bus, membership: Membership, seats: Seats
) -> None:
    """Keep what the Computer can do now, for `list_room`, and tell the office.

    Raises:
        NotAllowed, NotInOffice, Unavailable: as for `update`; also without quorum.
    """
    office, _, name = named(call)
    if request.computer == name:
        member = await membership.caller(call)
        capabilities = request.capabilities.model_dump(exclude_unset=True)
        await seats.amend(office, "computer", name, member.record, capabilities=capabilities)
    await update(request, call, bus=bus, membership=membership)


async def tool_call_cancel(request: AgentCallData, call: Call, *, bus: Bus, membership: Membership) -> None:
    """Publish the cancel to the Agent's office. Unknown ids are harmless.

    Raises:
        NotAllowed: the sender is no Agent, or speaks for another.
        NotInOffice: the sender is no member.
        Unavailable: the sender's membership cannot be looked up now.
    """
    office, role, name = named(call)
    if role != "agent" or request.agent != name:
        raise NotAllowed("an Agent cancels its own calls only", details={"field": "agent"})
    await membership.caller(call)
    body = AgentCallData(agent=request.agent, req_id=request.req_id).model_dump_json(exclude_unset=True).encode()
    subject = subjects.notify(office, "tool_call_cancel")
    with sending(subject) as headers:
        await bus.publish(subject, body, headers=headers)
