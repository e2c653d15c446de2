"""How the members of an office are told apart."""

from smcp_proto.ids import Role
from smcp_proto.schemas import ListRoomRet

MemberKey = tuple[Role, str]
"""Role and name."""


def member_keys(room: ListRoomRet) -> list[MemberKey]:
    """Who is in a list; a member that does not say its role and name is none that anybody could be told of."""
    return [(member.role, member.name) for member in room.sessions if member.role and member.name]
