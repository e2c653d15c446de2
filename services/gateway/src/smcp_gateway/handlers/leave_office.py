"""`server:leave_office` (events.txt, room events)."""

from smcp_bus.door.types import Call
from smcp_gateway.rooms.memberships import Memberships
from smcp_gateway.sockets.session import Sessions
from smcp_proto.schemas import LeaveOfficeReq


async def leave_office(request: LeaveOfficeReq, call: Call, *, sessions: Sessions, memberships: Memberships) -> None:
    """End the caller's membership of the office.

    Raises:
        NotInOffice: it is not in that office.
        Unavailable: it cannot be done now.
    """
    session = sessions.get(call.caller.session)
    if session is not None:
        await memberships.leave(session, request.office_id, call.req_id)
