"""`server:join_office` (events.txt, room events)."""

from smcp_bus import exact_json
from smcp_bus.door.types import Call
from smcp_gateway.auth.grants import decide
from smcp_gateway.rooms.memberships import Memberships
from smcp_gateway.sockets.session import Sessions
from smcp_proto.schemas import EnterOfficeReq


async def join_office(request: EnterOfficeReq, call: Call, *, sessions: Sessions, memberships: Memberships) -> None:
    """Make the caller a member of the office; in its own office already: nothing happens.

    Raises:
        NotAllowed: its token is not for that place; the place is another's; an Agent is in another office; the
            connection has another role or name.
        Unavailable: it cannot be decided now.
    """
    session = sessions.get(call.caller.session)
    if session is not None:
        if session.principal is not None:
            grants = session.principal.grants
            refusal = decide(grants, office=request.office_id, role=request.role, name=request.name)
            if refusal is not None:
                raise refusal
        await memberships.join(session, request, call.raw or exact_json.written(call.payload), call.req_id)
