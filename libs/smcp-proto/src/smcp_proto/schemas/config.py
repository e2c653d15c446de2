"""The configuration of a Computer's MCP servers and inputs (data-structures.txt, configuration and inputs), and their
states (`client:get_status`).

The page writes the structures as they go over the wire; the defaults are those of computer.txt and of the settled
answers. Strings may hold placeholders (`${input:ID}`, `${env:X}`).
"""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, TypeAdapter, ValidationError

from smcp_proto.member_names import Name
from smcp_proto.schemas.base import AgentCallData, ReqId, ServerName, Wire, absent
from smcp_proto.schemas.tools import ToolMeta
from smcp_proto.validation import by_type

_DURATION: TypeAdapter[timedelta] = TypeAdapter(timedelta)
_MAX_LENGTH = 64


def parse_duration(text: str) -> timedelta:
    """Return the duration. Raises ValueError: it is not of the form `P[nW][nD][T[nH][nM][nS]]` (years and months have
    no fixed length), zero, or beyond what a timedelta holds."""
    date = text.partition("T")[0]
    if len(text) > _MAX_LENGTH or not date.startswith("P") or not {"Y", "M"}.isdisjoint(date) or text.endswith("T"):
        raise ValueError("not an ISO 8601 duration such as PT30S")
    try:
        duration = _DURATION.validate_python(text.replace(",", "."))
    except ValidationError:
        raise ValueError("not an ISO 8601 duration such as PT30S") from None
    if duration <= timedelta():
        raise ValueError("the duration is zero")
    return duration


def _check(text: str) -> str:
    if "${" not in text:  # a placeholder is resolved before it is used, and checked then
        parse_duration(text)
    return text


def _refuse_number(value: object) -> object:
    if not isinstance(value, int | float):
        return value
    try:
        parse_duration(example := f"PT{value}S")
    except ValueError:
        example = "PT30S"
    raise ValueError(f'must be an ISO 8601 duration in quotes, such as "{example}"')


IsoDuration = Annotated[str, Field(strict=True), AfterValidator(_check), BeforeValidator(_refuse_number)]
"""An ISO 8601 duration as text, for pydantic models; one that holds a placeholder is not read yet."""


Text = Annotated[str, Field(strict=True, min_length=1)]
Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class BaseMCPServerConfig(Wire):
    """The fields that all MCP servers' configurations have."""

    name: ServerName
    disabled: bool = False
    forbidden_tools: list[str] = Field(default_factory=list)
    """Original names or aliases of tools that are neither listed nor called."""
    tool_meta: dict[str, ToolMeta] = Field(default_factory=dict)
    """By the tool's original name."""
    default_tool_meta: ToolMeta | None = None
    """Applies as a whole to a tool that has no entry in `tool_meta`."""
    vrl: str | None = None
    """A VRL program that transforms what the tools return."""


class MCPServerStdioParameters(Wire):
    """How to start an MCP server that talks over its standard streams."""

    command: Text
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] | None = None
    """None: the default environment of the MCP SDK and nothing else."""
    cwd: str | None = None
    encoding: str = "utf-8"
    encoding_error_handler: Literal["strict", "ignore", "replace"] = "strict"


class MCPServerStdioConfig(BaseMCPServerConfig):
    """An MCP server that is started as a program (data-structures.txt, MCPServerStdioConfig)."""

    type: Literal["stdio"]
    server_parameters: MCPServerStdioParameters


class MCPServerStreamableHttpParameters(Wire):
    """How to reach an MCP server over Streamable HTTP."""

    url: Text
    headers: dict[str, Any] | None = None
    timeout: IsoDuration = "PT30S"
    sse_read_timeout: IsoDuration = "PT5M"
    terminate_on_close: bool = True


class MCPServerStreamableHttpConfig(BaseMCPServerConfig):
    """An MCP server behind Streamable HTTP (data-structures.txt, MCPServerStreamableHttpConfig)."""

    type: Literal["streamable"]
    server_parameters: MCPServerStreamableHttpParameters


class MCPSSEParameters(Wire):
    """How to reach an MCP server over HTTP with SSE."""

    url: Text
    headers: dict[str, Any] | None = None
    timeout: Seconds = 5.0
    sse_read_timeout: Seconds = 300.0


class MCPSSEConfig(BaseMCPServerConfig):
    """An MCP server behind HTTP with server-sent events (data-structures.txt, MCPSSEConfig)."""

    type: Literal["sse"]
    server_parameters: MCPSSEParameters


MCPServerConfig = Annotated[
    Annotated[MCPServerStdioConfig, Tag("type=stdio")]
    | Annotated[MCPServerStreamableHttpConfig, Tag("type=streamable")]
    | Annotated[MCPSSEConfig, Tag("type=sse")],
    by_type("stdio", "streamable", "sse"),
]


class MCPServerInputBase(Wire):
    """A value that is asked for when a configuration is resolved: `${input:ID}`."""

    id: Text
    description: str


class MCPServerPromptStringInput(MCPServerInputBase):
    """A text that the user is asked for (data-structures.txt, MCPServerPromptStringInput)."""

    type: Literal["promptString"]
    default: str | None = None
    password: bool | None = None
    """Hide what is typed."""


class MCPServerPickStringInput(MCPServerInputBase):
    """One of `options`, which the user picks (data-structures.txt, MCPServerPickStringInput)."""

    type: Literal["pickString"]
    options: list[str]
    default: str | None = None


class MCPServerCommandInput(MCPServerInputBase):
    """The value is what a program prints, stripped."""

    type: Literal["command"]
    command: Text
    """A program, run without a shell."""
    args: dict[str, str] | None = None
    """Each becomes `--key value`, in this order."""


MCPServerInput = Annotated[
    Annotated[MCPServerPromptStringInput, Tag("type=promptString")]
    | Annotated[MCPServerPickStringInput, Tag("type=pickString")]
    | Annotated[MCPServerCommandInput, Tag("type=command")],
    by_type("promptString", "pickString", "command"),
]

SERVER_CONFIG: TypeAdapter[MCPServerConfig] = TypeAdapter(MCPServerConfig)
"""Validates one server's configuration, `name` inside."""

SERVER_INPUT: TypeAdapter[MCPServerInput] = TypeAdapter(MCPServerInput)
"""Validates one input's definition."""


class GetComputerConfigReq(AgentCallData):
    computer: Name


class GetComputerConfigRet(Wire):
    """The reply to `client:get_config`. Secrets never leave the Computer: they stand as `<redacted>`."""

    inputs: list[MCPServerInput] | None = None
    servers: dict[str, MCPServerConfig]
    """By the server's name."""


class UpdateComputerConfigReq(Wire):
    """`server:update_config`; also `server:` and `notify:` of `update_desktop` and `update_finder`."""

    computer: Name


class UpdateMCPConfigNotification(Wire):
    computer: Name | None = absent()


class UpdateToolListNotification(Wire):
    computer: Name | None = absent()


_Count = Annotated[int, Field(strict=True, ge=0)]


class GetStatusReq(AgentCallData):
    """`client:get_status`: ours, no page of the protocol has it."""

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
    """How many of its tools are listed to the asker now."""


class GetStatusRet(Wire):
    servers: list[ServerStatus]
    """Sorted by name."""
    config_problem: str | None = absent()
    """Why the configuration file as it is now is not in use; the one before it is. Absent: it is in use."""
    req_id: ReqId
