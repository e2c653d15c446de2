"""`notify:resources/updated`, said by a Computer on Socket.IO: told to who subscribed, and to nobody else."""

from functools import partial

from smcp_bus import exact_json
from smcp_bus.dispatch_types import Call
from smcp_bus.registry_client import RegistryClient
from smcp_gateway.relay_computers import RelayComputers
from smcp_gateway.updates import Key
from smcp_proto.errors import Malformed
from smcp_proto.schemas import ResourceUpdatedNotification


async def resource_updated(
    request: ResourceUpdatedNotification, call: Call, *, computers: RelayComputers, registry: RegistryClient
) -> None:
    """Pass it on once for each subscriber, whom it names then. Where who subscribed is not known, as it came.

    Raises:
        Malformed: it does not say of which Computer it is.
        Unavailable, BusError: too much waits to be told, and no registry answers.
    """
    caller, server, uri = call.caller, request.serverId, request.payload.params.uri
    assert caller.office is not None
    assert caller.name is not None
    if request.computerId is None:
        raise Malformed("computerId: is missing", details={"field": "computerId"})
    updates = computers.updates(caller.session, caller.office)
    if updates is None:
        return  # it has just left
    told = computers.subscribers(caller.session, caller.office, server, uri)
    raw = call.raw or exact_json.written(call.payload)
    bodies = {request.agent: raw} if told is None else {}
    for agent in told or ():
        if request.agent in (None, agent):
            bodies[agent] = exact_json.written({**call.payload, "agent": agent})
    for named, body in bodies.items():
        tell = partial(
            registry.tell, caller.office, "computer", caller.name, call.row.verb, body, req_id=call.req_id
        )  # fmt: skip
        await updates.add(Key(named, server, uri), tell, len(body) + len(uri))
