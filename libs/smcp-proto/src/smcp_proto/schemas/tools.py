"""Calling tools and listing them (data-structures.txt, tools)."""

from typing import Annotated, Any, Final

from pydantic import Field

from smcp_proto.names import Name
from smcp_proto.schemas.base import AgentCallData, Attributes, ReqId, ToolName, Wire

Timeout = Annotated[int, Field(strict=True, ge=1, le=3600)]
"""Whole seconds, 1 to 3600."""


REPEAT: Final = "a2c_repeat"
"""An extra field of a `client:tool_call`, true where the same request may have arrived before; no part of what is asked
for. A Computer that does not know a call so marked does not run it, but answers 503 with `details.may_have_run`."""


class ToolCallReq(AgentCallData):
    """`client:tool_call`."""

    computer: Name
    tool_name: ToolName
    params: dict[str, Any]
    timeout: Timeout
    """Seconds the whole call may take."""


class CallToolResult(Wire):
    """The reply to `client:tool_call`: MCP's result, whatever it holds.

    Only what a peer needs to tell success from failure is typed here; the contents are MCP's business.
    """

    content: list[dict[str, Any]] = Field(default_factory=list)
    structuredContent: Any = None  # noqa: N815 -- as on the wire
    isError: bool = False  # noqa: N815
    meta: dict[str, Any] | None = None
    """Result-level metadata: what the MCP server put into `_meta`, and the `a2c_*` keys."""


class ToolMeta(Wire):
    """What is configured about a tool; the JSON string `SMCPTool.meta["a2c_tool_meta"]` holds it.

    The fields stand in the order in which the page's example writes them.
    """

    auto_apply: bool | None = None
    """Run without asking the user; None: as the Computer's setting says."""
    alias: str | None = None
    """The name under which the tool is listed instead of its own."""
    tags: list[str] | None = None
    ret_object_mapper: dict[str, Any] | None = None
    """How to rename what the tool returns."""


class SMCPTool(Wire):
    """A tool in the list of a Computer."""

    name: str
    description: str
    params_schema: dict[str, Any]
    """JSON Schema of the parameters."""
    return_schema: dict[str, Any] | None = None
    """JSON Schema of the structured result."""
    meta: Attributes | None = None
    """`a2c_tool_meta` and `MCP_TOOL_ANNOTATION` (JSON strings) are the Computer's, other keys the MCP server's."""


class GetToolsReq(AgentCallData):
    """`client:get_tools`."""

    computer: Name


class GetToolsRet(Wire):
    """The reply to `client:get_tools`."""

    tools: list[SMCPTool]
    req_id: ReqId
