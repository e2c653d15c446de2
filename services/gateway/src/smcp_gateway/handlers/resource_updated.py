"""`notify:resources/updated`, said by a Computer on Socket.IO: told to who subscribed, and to nobody else."""

from collections.abc import Awaitable, Callable
from functools import partial

from smcp_bus import exact_json
from smcp_bus.dispatch import Call
from smcp_bus.registry_client import RegistryClient
from smcp_gateway.computers.relay_computers import RelayComputers
from smcp_gateway.computers.updates import Key, Short
from smcp_proto.errors import Malformed
from smcp_proto.schemas import ResourceUpdatedNotification


async def resource_updated(
    request: ResourceUpdatedNotification, call: Call, *, computers: RelayComputers, registry: RegistryClient
) -> None:
    """Pass it on once for each subscriber, whom it names then. Where who subscribed is not known, as it came. Where too
    much waits to be told, it says nothing but that the resource changed to which the Agent subscribed.

    Raises:
        Malformed: it does not say of which Computer it is.
        Unavailable, BusError: too much waits even so, and no registry answers.
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
    # what waits must not keep the request, which may be far larger
    say = partial(registry.tell, caller.office, "computer", caller.name, call.row.verb, req_id=call.req_id)
    for named, body in bodies.items():
        whole = computers.whole(caller.session, caller.office, named, uri)
        in_short = partial(_tell_in_short, say, caller.office, caller.name, server, named, whole)
        short = Short(Key(named, server, whole), in_short)
        await updates.add(Key(named, server, uri), partial(say, body), len(body) + len(uri), short=short)


async def _tell_in_short(
    say: Callable[[bytes], Awaitable[object]],
    office: str,
    computer: str,
    server: str | None,
    agent: str | None,
    uri: str,
) -> None:
    await say(_in_short(office, computer, server, agent, uri))


def _in_short(office: str, computer: str, server: str | None, agent: str | None, uri: str) -> bytes:
    """The notification with nothing but what it has to have (computer.txt, resources chapter, 4.3)."""
    payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
    names = {"serverId": server, "agent": agent}
    said = {name: value for name, value in names.items() if value is not None}
    return exact_json.written({"roomId": office, "computerId": computer, **said, "payload": payload})
