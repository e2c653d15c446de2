"""Offices and who is in them (data-structures.txt, rooms; events.txt, room events)."""

from typing import Final

from smcp_proto.ids import Role
from smcp_proto.names import Name
from smcp_proto.schemas.base import AgentCallData, ReqId, Wire, absent
from smcp_proto.schemas.capabilities import Capabilities

MOVED: Final = "a2c_moved"
"""An extra field of a `server:join_office`, true where an Agent was sent away by its last gateway and counts its place
as kept. Where it was not, the Agent is told of each Computer that it may have missed something (`resources.MISSED`)."""


class EnterOfficeReq(Wire):
    """`server:join_office`."""

    role: Role
    name: Name
    office_id: Name
    capabilities: Capabilities | None = absent()
    """What the Computer can do beside tools (computer.txt, resources chapter, 1)."""


class LeaveOfficeReq(Wire):
    """`server:leave_office`."""

    office_id: Name


class EnterOfficeNotification(Wire):
    """`notify:enter_office`. Of `computer` and `agent` only the one that applies is present."""

    office_id: Name | None = absent()
    computer: Name | None = absent()
    agent: Name | None = absent()


class LeaveOfficeNotification(Wire):
    """`notify:leave_office`. Of `computer` and `agent` only the one that applies is present."""

    office_id: Name | None = absent()
    computer: Name | None = absent()
    agent: Name | None = absent()


class ListRoomReq(AgentCallData):
    """`server:list_room`; `agent` is the asking member, of whichever role."""

    office_id: Name


class SessionInfo(Wire):
    """A member of an office, in the reply to `server:list_room`."""

    sid: str | None = absent()
    """Opaque, of no use to anyone else."""
    name: Name | None = absent()
    role: Role | None = absent()
    office_id: Name | None = absent()
    a2c_version: str | None = absent()
    """As the client said it at connect."""
    capabilities: Capabilities | None = absent()


class ListRoomRet(Wire):
    """The reply to `server:list_room`."""

    sessions: list[SessionInfo]
    req_id: ReqId
