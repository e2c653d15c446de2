"""`server:tool_call_cancel`: the broadcast that the registry makes of it is the delivery."""

import asyncio

from smcp_bus import exact_json
from smcp_bus.dispatch import Call
from smcp_bus.errors import BusError
from smcp_bus.registry_client import RegistryClient
from smcp_gateway.calls.pending import CallTable
from smcp_proto.errors import SmcpError
from smcp_proto.schemas import AgentCallData


async def cancel(request: AgentCallData, call: Call, *, registry: RegistryClient, calls: CallTable) -> None:
    """Tell the office; a call of the same name that waits here is settled by its Computer, or soon after by us.

    Raises:
        Unavailable: no registry answers; the call goes on.
    """
    caller = call.caller
    assert caller.office is not None
    assert caller.name is not None
    body = call.raw or exact_json.written(call.payload)
    # its time runs from here: a registry that is slow to acknowledge must not make the Agent wait longer
    cancelled = calls.cancel(caller.session, request.req_id, now=asyncio.get_running_loop().time())
    try:
        await registry.tell(caller.office, "agent", caller.name, call.row.verb, body, req_id=request.req_id)
    except (SmcpError, BusError):
        calls.take_back_cancel(cancelled)  # and nothing that an earlier cancel has told
        raise
