"""Optional fields: those that are null on the wire where there is nothing, and all others, which are absent."""

from collections.abc import Iterator

import pytest

from smcp_proto import schemas
from smcp_proto.schemas.base import Wire, absent

NULL = """
BaseMCPServerConfig.default_tool_meta
BaseMCPServerConfig.vrl
CallToolResult.meta
CallToolResult.structuredContent
DPEElement.content
Envelope.serverId
GetComputerConfigRet.inputs
JsonRpcError.data
JsonRpcNotification.params
JsonRpcRequest.params
MCPSSEParameters.headers
MCPServerCommandInput.args
MCPServerPickStringInput.default
MCPServerPromptStringInput.default
MCPServerPromptStringInput.password
MCPServerStdioParameters.cwd
MCPServerStdioParameters.env
MCPServerStreamableHttpParameters.headers
SMCPTool.meta
SMCPTool.return_schema
ToolMeta.alias
ToolMeta.auto_apply
ToolMeta.ret_object_mapper
ToolMeta.tags
"""
"""The fields of which the pages say `or null`, and those of MCP and JSON-RPC that take anything."""


def structures(base: type[Wire] = Wire) -> Iterator[type[Wire]]:
    for model in base.__subclasses__():
        if model.__module__.startswith(schemas.__name__):
            yield model
            yield from structures(model)


def test_an_unset_field_without_a_null_form_is_not_written() -> None:
    written = set()
    for model in structures():
        for name in model.__annotations__.keys() & model.model_fields.keys():
            field = model.model_fields[name]
            if not field.is_required() and field.get_default(call_default_factory=True) is None:
                built = model.model_construct(**{name: None})
                written |= {f"{model.__name__}.{name}" for shown in built.model_dump(include={name}) if shown == name}
    assert sorted(written) == NULL.split()


def test_an_absent_field_may_be_left_out_and_is_then_not_written() -> None:
    class Sized(Wire):
        size: int | None = absent()

    assert Sized.model_validate({}).size is None
    assert Sized(size=None).model_dump() == {}
    assert Sized(size=None).model_dump_json() == "{}"
    assert Sized(size=0).model_dump() == {"size": 0}


@pytest.mark.parametrize("model", [schemas.ResourceFeatures, schemas.ResourceCapability])
def test_unstated_resource_capabilities_count_as_absent(model: type[schemas.ResourceFeatures]) -> None:
    assert (model().subscribe, model().listChanged) == (False, False)
