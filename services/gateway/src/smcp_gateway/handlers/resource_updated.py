"""`notify:resources/updated`, announced by a Computer on Socket.IO: told to the Agents that subscribed."""

from smcp_bus import exact_json
from smcp_bus.dispatch import Call
from smcp_gateway.computers.relay_computers import RelayComputers
from smcp_gateway.computers.subscriptions import Key
from smcp_proto.errors import Malformed
from smcp_proto.schemas import ResourceUpdatedNotification


async def resource_updated(request: ResourceUpdatedNotification, call: Call, *, computers: RelayComputers) -> None:
    """Pass it on once for each subscriber, who is named in it.

    Raises:
        Malformed: it does not say of which Computer it is.
    """
    if request.computerId is None:
        raise Malformed("computerId: is missing", details={"field": "computerId"})
    assert call.caller.office is not None
    owned = computers.of(call.caller.session, call.caller.office)
    if owned is None:
        return  # it has just left
    server, uri = request.serverId, request.payload.params.uri
    for agent in owned.subscriptions.agents(server, uri):
        if request.agent in (None, agent):
            payload = call.payload if agent is None else {**call.payload, "agent": agent}
            owned.updates.add(Key(agent, server, uri), exact_json.written(payload))
