"""`server:tool_call_cancel`: the broadcast is the delivery, owners match `(agent, req_id)` (events.txt)."""

from smcp_bus import subjects
from smcp_bus.bus import Bus
from smcp_bus.door.tracing import sending
from smcp_bus.door.types import Call
from smcp_proto.errors import NotAllowed
from smcp_proto.schemas import AgentCallData
from smcp_registry.membership import Membership, named


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
