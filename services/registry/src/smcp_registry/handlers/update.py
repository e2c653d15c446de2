"""`server:update_*` and `server:resources/*`: what a Computer tells its office (events.txt, configuration and state;
computer.txt, resources chapter)."""

from typing import Final

from pydantic import BaseModel

from smcp_bus import subjects
from smcp_bus.bus import Bus
from smcp_bus.door.tracing import sending
from smcp_bus.door.types import Call
from smcp_proto.catalog import verb_of
from smcp_proto.errors import Malformed, NotAllowed
from smcp_proto.schemas import Envelope
from smcp_proto.schemas.resources import MISSED
from smcp_registry.membership import Membership, named

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
