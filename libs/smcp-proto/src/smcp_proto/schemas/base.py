"""What all structures of the wire have in common, and the small types that many of them use."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from smcp_proto.names import Name

MAX_REQ_ID_LENGTH: Final = 256
NO_CONTROL_CHARACTERS: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"


class Wire(BaseModel):
    """A structure of the wire.

    Fields that we do not know are kept (a relay passes them on); types are strict (a string is no int). A field that
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
"""What the caller names its request: 1 to 256 characters, none of them a control character."""

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
"""What may stand in `SMCPTool.meta`; everything else is there as a JSON string."""

Attributes = dict[str, AttributeValue]


class AgentCallData(Wire):
    """What every request of an Agent carries (data-structures.txt, AgentCallData)."""

    agent: Name
    """The Agent's name in its office."""
    req_id: ReqId
    """Names the request: for cancelling, for de-duplication, for its trace."""
    traceparent: str | None = absent()
    """Of an Agent that is itself traced: its W3C trace context; one that cannot be read is ignored."""
