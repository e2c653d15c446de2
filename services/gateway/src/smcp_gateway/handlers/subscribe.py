"""`client:resources/subscribe` and `unsubscribe`: relayed with what the Computer's owner needs to keep its table."""

from dataclasses import replace
from typing import Protocol

from smcp_bus import exact_json
from smcp_bus.dispatch import Call, RawJson
from smcp_bus.headers import AGENT_EPOCH
from smcp_gateway.sockets.session import Sessions
from smcp_proto.errors import NotInOffice
from smcp_proto.schemas import SubscribeResourceReq, UnsubscribeResourceReq

Request = SubscribeResourceReq | UnsubscribeResourceReq


class Carry(Protocol):
    """`Relay`."""

    async def __call__(self, request: Request, call: Call) -> RawJson:
        """Carry the request to its Computer, and give its answer."""


async def subscribe(request: Request, call: Call, *, relay: Carry, sessions: Sessions) -> RawJson:
    """Relay the request. It names its Agent, and the header says which membership of that Agent it belongs to.

    Raises:
        NotInOffice: the Agent has just left.
        SmcpError: as `Relay`.
    """
    session = sessions.get(call.caller.session)
    if session is None or session.membership is None:
        raise NotInOffice("not in an office")
    call = replace(call, headers={**call.headers, AGENT_EPOCH: str(session.membership.epoch)})
    if request.agent is None:
        payload = {**call.payload, "agent": call.caller.name}
        call = replace(call, payload=payload, raw=exact_json.written(payload))
    return await relay(request, call)
