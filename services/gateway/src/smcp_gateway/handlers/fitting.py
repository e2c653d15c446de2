"""`client:get_desktop` and `client:get_finder`: relayed with how much the Agent takes, so that it gets that much."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from pydantic import BaseModel

from smcp_bus.dispatch import Call, RawJson
from smcp_bus.headers import REPLY_LIMIT
from smcp_gateway.sockets.packet import largest_reply
from smcp_gateway.sockets.session import Sessions
from smcp_proto.errors import NotInOffice


async def fitting(
    request: BaseModel, call: Call, *, relay: Callable[[BaseModel, Call], Awaitable[RawJson]], sessions: Sessions
) -> RawJson:
    """Relay the request. The header says how large an answer may be that is not refused here (`acks.ack_argument`).

    Raises:
        NotInOffice: the Agent has just left.
        SmcpError: as `Relay`.
    """
    session = sessions.get(call.caller.session)
    if session is None:
        raise NotInOffice("not in an office")
    limit = str(largest_reply(session.max_message))
    return await relay(request, replace(call, headers={**call.headers, REPLY_LIMIT: limit}))
