"""How a Computer's MCP servers are (`client:get_status`). Ours: no page of the protocol has it."""

from typing import Annotated

from pydantic import Field

from smcp_proto.member_names import Name
from smcp_proto.schemas.base import AgentCallData, ReqId, ServerName, Wire, absent

_Count = Annotated[int, Field(strict=True, ge=0)]


class GetStatusReq(AgentCallData):
    """`client:get_status`."""

    computer: Name


class ServerStatus(Wire):
    """One MCP server, without anything that only the user of its host should know."""

    name: ServerName
    state: str
    """`starting`, `ready`, `degraded`, `backoff`, `stopped`, `disabled` or `failed`; later versions may add some."""
    reason: str
    """Why it is in this state; empty where there is nothing to say."""
    since: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    """When it came into this state, in seconds since 1970."""
    restarts: _Count
    """How many times it was started again."""
    tools: _Count
    """How many of its tools are listed now."""


class GetStatusRet(Wire):
    """The reply to `client:get_status`."""

    servers: list[ServerStatus]
    """Sorted by name."""
    config_problem: str | None = absent()
    """Why the configuration file as it is now is not in use; the one before it is. Absent: it is in use."""
    req_id: ReqId
