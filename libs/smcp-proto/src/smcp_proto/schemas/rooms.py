"""Offices and who is in them (data-structures.txt, rooms; events.txt, room events)."""

from typing import Final

from smcp_proto.member_names import Name, Role
from smcp_proto.schemas.base import AgentCallData, ReqId, ServerName, Wire, absent


class ResourceFeatures(Wire):
    """What one MCP server, or a Computer taken as a whole, offers of MCP's resources."""

    subscribe: bool = False
    """Subscribers of a single resource are notified of its changes."""
    listChanged: bool = False  # noqa: N815 -- as on the wire
    """Changes of the list of resources are notified."""


class ResourceCapability(ResourceFeatures):
    """Resources: as flags of the whole Computer, or `aggregate` with `byServer`; both forms are legal."""

    aggregate: ResourceFeatures | None = absent()
    byServer: dict[ServerName, ResourceFeatures] | None = absent()  # noqa: N815


class Capabilities(Wire):
    """In `EnterOfficeReq`, in `SessionInfo` and in `server:update_capabilities`."""

    resources: ResourceCapability | None = absent()


class UpdateCapabilitiesReq(Wire):
    """`server:update_capabilities` and `notify:update_capabilities`: all of what the Computer can do now."""

    computer: Name
    capabilities: Capabilities


RESTARTS: Final = "a2c_restarts"
"""An extra field of a `server:leave_office`, true where a Computer is about to be restarted: nothing is announced, and
its seat is kept for a while. It takes no new calls, ends those that run, says it once more, and disconnects."""


class EnterOfficeReq(Wire):
    role: Role
    name: Name
    office_id: Name
    capabilities: Capabilities | None = absent()
    """The capabilities of the Computer beside tools (computer.txt, resources chapter, 1)."""


class LeaveOfficeReq(Wire):
    office_id: Name


class EnterOfficeNotification(Wire):
    """`notify:enter_office`. Of `computer` and `agent` only the one that applies is present."""

    office_id: Name | None = absent()
    computer: Name | None = absent()
    agent: Name | None = absent()


class LeaveOfficeNotification(EnterOfficeNotification):
    """`notify:leave_office`. Of `computer` and `agent` only the one that applies is present."""


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
    sessions: list[SessionInfo]
    req_id: ReqId
