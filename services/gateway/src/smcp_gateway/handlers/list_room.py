"""`server:list_room` (events.txt, room events): a question to the registry."""

from smcp_bus.door.types import Call, RawJson
from smcp_bus.registry.client import RegistryClient
from smcp_gateway.rooms.offices import Offices
from smcp_gateway.sockets.session import Sessions
from smcp_proto.errors import NotInOffice
from smcp_proto.schemas import ListRoomReq


async def list_room(
    request: ListRoomReq, call: Call, *, sessions: Sessions, offices: Offices, registry: RegistryClient
) -> RawJson:
    """The members of the caller's office, the caller among them; what it was told before it asked is in the list.

    Raises:
        NotInOffice: it has just left.
        Unavailable: no registry answers, or the one that does is too far behind.
    """
    session = sessions.get(call.caller.session)
    membership = session.membership if session is not None else None
    if session is None or membership is None or session.role is None or session.name is None:
        raise NotInOffice("not in an office")
    body = request.model_dump_json(exclude_unset=True).encode()
    office = offices.get(membership.office)
    # Any registry may answer, and one may be behind the one that announced what the caller has heard.
    after = max(membership.revision, 0 if office is None else office.picture.revision)
    reply = await registry.list_room(membership.office, session.role, session.name, body, after=after)
    return RawJson(reply)
