"""`server:list_room` (events.txt, room events; settled: for members of either role, for their own office)."""

import orjson

from smcp_bus.door.types import Call, RawJson
from smcp_proto.errors import NotAllowed
from smcp_proto.schemas import ListRoomReq
from smcp_registry.membership import Membership, after, named
from smcp_registry.room_lists import RoomLists


async def list_room(request: ListRoomReq, call: Call, *, lists: RoomLists, membership: Membership) -> RawJson:
    """A ListRoomRet: the members of the asker's office that were announced, and the asker itself in any case.

    Raises:
        NotAllowed: it asks for another office.
        NotInOffice: it is no member.
        Unavailable: the view has not reached the asker's own join, or what it was told of others; or not everybody is
            back after the store was lost.
    """
    office, _, _ = named(call)
    if request.office_id != office:
        raise NotAllowed("only one's own office", details={"field": "office_id"})
    await membership.settled(call)
    await membership.caught_up(after(call), call)
    asker = await membership.caller(call)
    await membership.caught_up(asker.revision, call)
    membership.whole(office)
    sessions = lists.sessions(office, asker.record.owner)
    return RawJson(b'{"sessions":%b,"req_id":%b}' % (sessions, orjson.dumps(request.req_id)))
