"""The base of all structures of the wire, and small types that many of them use."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from smcp_proto.member_names import Name

MAX_REQ_ID_LENGTH: Final = 256
NO_CONTROL_CHARACTERS: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"


class Wire(BaseModel):
    """A structure of the wire.

    Unknown fields are kept (a relay passes them on); types are strict (a string is not an int). A field that
    is optional on the wire is absent there, not null, unless its type says null: dump with `exclude_unset=True`.
    """

    model_config = ConfigDict(
        extra="allow", strict=True, hide_input_in_errors=True, use_attribute_docstrings=True, defer_build=True
    )


def is_none(value: object) -> bool:
    """For `exclude_if`: fields that are None are left out of the JSON."""
    return value is None


def absent() -> Any:
    """The default of a field that has no null on the wire: None in Python, absent when dumped."""
    return Field(default=None, exclude_if=is_none)


ReqId = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_REQ_ID_LENGTH, pattern=NO_CONTROL_CHARACTERS)]
"""The id that the caller gives to its request: 1 to 256 characters, none of them a control character."""

ToolName = Annotated[str, Field(strict=True, min_length=1, max_length=512, pattern=NO_CONTROL_CHARACTERS)]
"""A tool as the Computer lists it."""

ServerName = Annotated[str, Field(strict=True, min_length=1, max_length=256, pattern=NO_CONTROL_CHARACTERS)]
"""An MCP server as its Computer's configuration names it (`SERVER_NAME`)."""


def _check_attribute(value: object) -> object:
    flat = isinstance(value, str | int | float | None)
    if not (flat or (isinstance(value, list) and all(isinstance(item, str) for item in value))):
        raise ValueError("neither a scalar nor a list of strings")
    return value


_Attribute = str | bool | int | float | list[str] | None
AttributeValue = Annotated[_Attribute, PlainValidator(_check_attribute, json_schema_input_type=_Attribute)]
"""The values allowed in `SMCPTool.meta`; everything else is there as a JSON string."""

Attributes = dict[str, AttributeValue]


class AgentCallData(Wire):
    """The fields of every request of an Agent (data-structures.txt, AgentCallData)."""

    agent: Name
    """The Agent's name in its office."""
    req_id: ReqId
    """Names the request: for cancelling, for de-duplication, for its trace."""
    traceparent: str | None = absent()
    """The W3C trace context of an Agent that is itself traced; an unreadable one is ignored."""


def _check_id(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("neither a string nor an integer")  # noqa: TRY004 -- pydantic takes ValueErrors
    if isinstance(value, str) and len(value) > MAX_REQ_ID_LENGTH:
        raise ValueError(f"longer than {MAX_REQ_ID_LENGTH} characters")
    return value


RequestId = Annotated[int | str, PlainValidator(_check_id, json_schema_input_type=int | str)]
"""JSON-RPC's id of a request; by one function, so that an error names the field and not a member of the union."""


class JsonRpcRequest(Wire):
    """A request, which is answered by a response with the same `id` (JSON-RPC 2.0, 4)."""

    jsonrpc: Literal["2.0"]
    id: RequestId
    method: str
    params: Any = None


class JsonRpcNotification(Wire):
    """A notification: it has no `id` and no answer (JSON-RPC 2.0, 4.1)."""

    jsonrpc: Literal["2.0"]
    method: str
    params: Any = None


class JsonRpcError(Wire):
    """An error of MCP; `data.smcp_code` says which of ours it is, where it is one."""

    code: int
    message: str
    data: Any = None


class JsonRpcResponse(Wire):
    """Either a `result` or an `error`."""

    jsonrpc: Literal["2.0"]
    id: RequestId | None
    result: dict[str, Any] | None = absent()
    error: JsonRpcError | None = absent()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.result is None) == (self.error is None):
            raise ValueError("a response has either a result or an error")
        return self


class UnknownClientReq(Wire):
    """An unknown `client:*` event: it names its Computer; the rest is between the Agent and that Computer."""

    computer: Name
    agent: Name | None = absent()
    req_id: ReqId | None = absent()
    traceparent: str | None = absent()


class UnknownRet(Wire):
    """The reply to an unknown event: any object."""


class UnknownUpdate(Wire):
    """An unknown `server:update_*`, and the `notify:update_*` that it becomes."""

    computer: Name | None = absent()
