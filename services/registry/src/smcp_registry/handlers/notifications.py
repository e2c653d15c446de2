"""Publishes what members tell their office (events.txt; computer.txt, resources chapter)."""

from pydantic import BaseModel

from smcp_bus import subjects
from smcp_bus.bus import Bus
from smcp_bus.dispatch import Call
from smcp_bus.tracing import sending
from smcp_proto.catalog import verb_of
from smcp_proto.errors import Malformed, NotAllowed
from smcp_proto.schemas import AgentCallData, Envelope, UpdateCapabilitiesReq
from smcp_registry.handlers.caller import Callers, named
from smcp_registry.seats import Seats


async def update(request: BaseModel, call: Call, *, bus: Bus, callers: Callers) -> None:
    """Publish the event's notification with the request's own content, unknown fields included.

    Where a page lets the Computer's name out (`update_tool_list`, data-structures.txt, UpdateToolListNotification), or
    there is no page (an unknown `update_*`), it is the sender's.
    """
    _, _, name = named(call)
    assert call.row.notifies is not None
    field = "computerId" if isinstance(request, Envelope) else "computer"
    computer = getattr(request, field, None)
    if computer is None and field == "computerId":
        raise Malformed(f"{field}: is missing", details={"field": field})
    if computer is not None and computer != name:
        raise NotAllowed("a Computer speaks for itself only", details={"field": field})
    await callers.member(call)
    if computer is None:
        request = request.model_copy(update={field: name})
    body = request.model_dump_json(exclude_unset=True).encode()
    await _publish(bus, call, verb_of(call.row.notifies), body)


async def update_capabilities(
    request: UpdateCapabilitiesReq, call: Call, *, bus: Bus, callers: Callers, seats: Seats
) -> None:
    office, _, name = named(call)
    if request.computer == name:
        member = await callers.member(call)
        capabilities = request.capabilities.model_dump(exclude_unset=True)
        await seats.amend(office, "computer", name, member.record, capabilities=capabilities)
    await update(request, call, bus=bus, callers=callers)


async def tool_call_cancel(request: AgentCallData, call: Call, *, bus: Bus, callers: Callers) -> None:
    """The broadcast is the delivery: owners match `(agent, req_id)`."""
    _, role, _ = named(call)
    if role != "agent":
        raise NotAllowed("an Agent cancels its own calls only", details={"field": "agent"})
    await callers.member(call)
    body = AgentCallData(agent=request.agent, req_id=request.req_id).model_dump_json(exclude_unset=True).encode()
    await _publish(bus, call, "tool_call_cancel", body)


async def _publish(bus: Bus, call: Call, verb: str, body: bytes) -> None:
    subject = subjects.notify(named(call)[0], verb)
    with sending(subject) as headers:
        await bus.publish(subject, body, headers=headers)
