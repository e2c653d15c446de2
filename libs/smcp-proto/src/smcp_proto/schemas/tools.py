"""Calling tools and listing them (data-structures.txt, tools)."""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, PlainValidator

from smcp_proto.member_names import LONGEST, Name, Pattern
from smcp_proto.schemas.base import NO_CONTROL_CHARACTERS, AgentCallData, Attributes, ReqId, ToolName, Wire, absent

MAX_TIMEOUT_S: Final = 3600
"""The longest call."""
Timeout = Annotated[int, Field(strict=True, ge=1, le=MAX_TIMEOUT_S)]
"""Whole seconds, 1 to 3600."""


REPEAT: Final = "a2c_repeat"
"""The field of `ToolCallReq` that marks a repeat; no part of what the call asks for."""
UNKNOWN_REPEAT: Final = "unknown_repeat"
"""In `details` of the 503 for a repeat that was not run. To repeat it once more is of no use."""
PROGRESS: Final = "a2c_progress"
PROGRESS_BY: Final = "a2c_progress_event"
"""Fields of `ToolCallReq` about the tool's progress; no part of what the call asks for either."""
TOOL_PROGRESS: Final = "server:tool_progress"
TOLD_OF_PROGRESS: Final = "notify:tool_progress"


def _check_repeat(value: object) -> object:
    if not isinstance(value, int) or value < 0:
        raise ValueError("neither true nor whole milliseconds, 0 or more")
    return value


_Repeat = bool | Annotated[int, Field(ge=0)]
Repeat = Annotated[_Repeat, PlainValidator(_check_repeat, json_schema_input_type=_Repeat)]


ON_BEHALF: Final = "a2c_on_behalf"
"""The field of `ToolCallReq` and of its cancel with an `OnBehalf`; gateways alone read it."""
Patterns = Annotated[list[Pattern], Field(min_length=1, max_length=64)]


class OnBehalf(Wire):
    """The user for whom an Agent calls a tool, where its key or token has `delegates`. Not in the protocol.

    The Computer and the audit trail get this subject in place of the Agent's own. What the call may do is what
    both may. Unknown fields are refused: they could be restrictions.
    """

    model_config = ConfigDict(extra="forbid")

    identity: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """The hash of the user's kind of credential, issuer and subject, by which Computers keep calls."""
    subject: Annotated[str, Field(min_length=1, max_length=LONGEST, pattern=NO_CONTROL_CHARACTERS)]
    """As the user's key or token says it."""
    computers: Patterns | None = absent()
    tools: Patterns | None = absent()
    """Patterns of the Computers and tools that the user may use; absent: any."""
    read_only: bool | None = absent()
    """True: only tools that only read."""


class ToolCallReq(AgentCallData):
    computer: Name
    tool_name: ToolName
    params: dict[str, Any]
    timeout: Timeout
    """Seconds the whole call may take."""
    a2c_repeat: Repeat | None = absent()
    """This request may have arrived before: whole milliseconds since it was sent first, or true if that is not known.
    A Computer that does not know the call runs it only if it would know it had it run; otherwise it answers 503."""
    a2c_progress: bool | None = absent()
    """Not in the protocol: true where the Agent reads `notify:tool_progress` of this call."""
    a2c_progress_event: Literal["server:tool_progress"] | None = absent()
    """Not in the protocol: the event by which a Computer on Socket.IO may report progress. Its gateway writes this."""
    input_state: Annotated[str, Field(min_length=1, max_length=256)] | None = absent()
    """Not in the protocol: `state` of the result with `meta.a2c_input_required` that this request answers."""
    input_responses: dict[str, dict[str, Any]] | None = absent()
    """Not in the protocol: MCP's ElicitResult for each of its `requests`, by their keys."""
    a2c_on_behalf: OnBehalf | None = absent()
    """Not in the protocol: the user for whom the Agent calls, where its key or token has `delegates`."""


FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]


class ToolProgress(Wire):
    """How far a tool has come, as its MCP server reports it (MCP, `notifications/progress`). Not in the protocol."""

    progress: FiniteNumber
    total: FiniteNumber | None = absent()
    """What `progress` will be at the end; absent: not known."""
    message: Annotated[str, Field(max_length=1024)] | None = absent()
    """A line for people."""


class ToolProgressReq(AgentCallData, ToolProgress):
    """`server:tool_progress`, not in the protocol: a Computer on Socket.IO says how far a call is."""

    computer: Name | None = absent()


class ToolProgressNotification(AgentCallData, ToolProgress):
    """`notify:tool_progress`, not in the protocol: for the Agent whose call it is, if it asked for it."""

    computer: Name


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
    """The configuration of a tool; the JSON string `SMCPTool.meta["a2c_tool_meta"]` holds it.

    The fields stand in the order in which the page's example writes them.
    """

    auto_apply: bool | None = None
    """Run without asking the user; None: as the Computer's setting says."""
    alias: str | None = None
    """The name under which the tool is listed instead of its own."""
    tags: list[str] | None = None
    ret_object_mapper: dict[str, Any] | None = None
    """How to rename what the tool returns."""


MCP_TOOL: Final = "a2c_mcp_tool"
"""The key of `SMCPTool.meta` with `title` and `icons` of MCP's Tool (JSON), for which `SMCPTool` has no field."""
PIN: Final = "a2c_pin"
"""The key of `SMCPTool.meta` of a tool that is not as the Computer's user approved it: `new`, or `changed: ` and the
fields of MCP's Tool that changed."""


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
    computer: Name


class GetToolsRet(Wire):
    tools: list[SMCPTool]
    req_id: ReqId


Desktop = str
"""One window: its URI, then, where it has text, an empty line and the text."""


class GetDeskTopReq(AgentCallData):
    computer: Name
    desktop_size: int | None = absent()
    """Maximum number of windows; 0 or less: none; absent: all."""
    window: str | None = absent()
    """Only the window with this URI; one that does not exist or is not a window URI gives an empty list."""


class GetDeskTopRet(Wire):
    desktops: list[Desktop] = Field(default_factory=list)
    req_id: ReqId | None = absent()
    a2c_missing: int | None = absent()
    """Not in the protocol: windows (or MCP servers' lists of them) that could not be read now. Nothing announces them
    when they can: ask again. Absent: none."""
    a2c_ages: list[float] | None = absent()
    """Not in the protocol: how long ago each of `desktops` was read (seconds), 0 for this request: its MCP server is
    slow. Absent: all were read for this request."""
