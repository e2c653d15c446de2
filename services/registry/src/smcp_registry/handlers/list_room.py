"""`server:list_room` (events.txt, room events; settled: for members of either role, for their own office)."""

from hashlib import blake2b

from smcp_bus.dispatch_types import Call
from smcp_proto.errors import NotAllowed
from smcp_proto.schemas import ListRoomReq, ListRoomRet, SessionInfo
from smcp_registry.membership import Membership, after, named
from smcp_registry.records import MemberRecord
from smcp_registry.view import MembersView


async def list_room(request: ListRoomReq, call: Call, *, view: MembersView, membership: Membership) -> ListRoomRet:
    """The members of the asker's office: those that were announced, and the asker itself in any case.

    Raises:
        NotAllowed: it asks for another office.
        NotInOffice: it is no member.
        Unavailable: the view has not reached the asker's own join.
    """
    office, _, _ = named(call)
    if request.office_id != office:
        raise NotAllowed("only one's own office", details={"field": "office_id"})
    await membership.settled(call)
    await membership.caught_up(after(call), call)
    asker = await membership.caller(call)
    await membership.caught_up(asker.revision, call)
    own = asker.record.owner
    records = (entry.record for entry in view.members(office))
    sessions = [session_info(record) for record in records if record.announced or record.owner == own]
    return ListRoomRet(sessions=sessions, req_id=request.req_id)


def session_info(record: MemberRecord) -> SessionInfo:
    """A member as its room mates see it; what it did not say is absent."""
    said = {
        "sid": opaque(record),
        "name": record.name,
        "role": record.role,
        "office_id": record.office,
        "a2c_version": record.a2c_version,
        "capabilities": record.capabilities,
    }
    return SessionInfo.model_validate({field: value for field, value in said.items() if value is not None})


def opaque(record: MemberRecord) -> str:
    """32 hex digits that stand for the member's session: the same at every registry, and of no use to anyone."""
    session = "\0".join((record.office, *record.owner))
    return blake2b(session.encode(), digest_size=16, person=b"smcp sid").hexdigest()
