"""`server:update_*` and `notify:resources/*`: what a Computer tells its office; the registry makes the notification."""

import asyncio
from contextlib import suppress

from pydantic import BaseModel

from smcp_bus import exact_json
from smcp_bus.door.types import Call
from smcp_bus.errors import BusError
from smcp_bus.registry.client import RegistryClient
from smcp_gateway.computers.relay_computers import RelayComputers
from smcp_proto.errors import SmcpError


async def update(request: BaseModel, call: Call, *, registry: RegistryClient, computers: RelayComputers) -> None:
    """Pass the event on as it came, behind the updates of resources that the Computer said before and that still wait.

    Raises:
        Unavailable: no registry answers, within the time of one question for all of them.
    """
    caller, loop = call.caller, asyncio.get_running_loop()
    ends = loop.time() + registry.room_s
    assert caller.office is not None
    assert caller.role is not None
    assert caller.name is not None
    updates = computers.updates(caller.session, caller.office)
    if updates is not None:
        with suppress(BusError, SmcpError, TimeoutError):  # they are told again; this event is not
            async with asyncio.timeout_at(ends):
                await updates.flush()
    body = call.raw or exact_json.written(call.payload)
    await registry.tell(
        caller.office,
        caller.role,
        caller.name,
        call.row.verb,
        body,
        timeout=ends - loop.time(),
        req_id=call.req_id,
    )
