"""The quota of requests for resources, and the updates that Socket.IO Computers announce."""

from typing import Any

from smcp_bus import exact_json
from smcp_bus.dispatch import Call, Handler
from smcp_bus.outbox import UPDATED, Key
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.quotas import Quotas
from smcp_gateway.sockets.session import Sessions
from smcp_proto.errors import Malformed
from smcp_proto.schemas import ResourceUpdatedNotification


def metered(handler: Handler, quotas: Quotas, sessions: Sessions) -> Handler:
    """Put the quota of reads before the handler of an event that makes MCP servers work."""

    async def limited(request: Any, call: Call) -> Any:
        session = sessions.get(call.caller.session)
        if session is not None:
            quotas.read(session)
        return await handler(request, call)

    return limited


async def resource_updated(request: ResourceUpdatedNotification, call: Call, *, computers: ComputerTable) -> None:
    """Pass `notify:resources/updated` of a Computer on, once for each subscribed Agent, with that Agent's name.

    Raises:
        Malformed: it names no Computer.
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
            owned.updates.put(Key(UPDATED, server, uri, agent), exact_json.written({**call.payload, "agent": agent}))
