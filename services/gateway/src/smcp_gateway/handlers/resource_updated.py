"""`notify:resources/updated`, said by a Computer on Socket.IO: told to who subscribed, and to nobody else."""

from dataclasses import replace

import orjson

from smcp_bus.dispatch_types import Call
from smcp_bus.registry_client import RegistryClient
from smcp_gateway.handlers.update import update
from smcp_gateway.relay_computers import RelayComputers
from smcp_proto.schemas import ResourceUpdatedNotification


async def resource_updated(
    request: ResourceUpdatedNotification, call: Call, *, computers: RelayComputers, registry: RegistryClient
) -> None:
    """Pass it on once for each subscriber, whom it names then. Where who subscribed is not known, as it came.

    Raises:
        Unavailable: no registry answers.
    """
    caller = call.caller
    assert caller.office is not None
    told = computers.subscribers(caller.session, caller.office, request.serverId, request.payload.params.uri)
    if told is None:
        await update(request, call, registry=registry)
        return
    for agent in told:
        if request.agent in (None, agent):
            payload = {**call.payload, "agent": agent}
            await update(request, replace(call, payload=payload, raw=orjson.dumps(payload)), registry=registry)
