"""Properties of every structure, the structures of tools, and optional fields that are absent or null."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from smcp_proto import schemas
from smcp_proto.catalog import CATALOG
from smcp_proto.schemas import (
    CallToolResult,
    GetToolsRet,
    SMCPTool,
    ToolCallReq,
    ToolMeta,
)
from smcp_proto.schemas.base import Wire, absent

AGENT: dict[str, Any] = {"agent": "bot", "req_id": "req-001"}
CALL: dict[str, Any] = {**AGENT, "computer": "my-computer", "tool_name": "echo", "params": {"a": 1}, "timeout": 30}
ROUTE: dict[str, Any] = {"roomId": "room-123", "computerId": "comp-1", "serverId": "excel"}

NAMES = """
AgentCallData ToolCallReq SMCPTool ToolMeta GetToolsReq GetToolsRet EnterOfficeReq LeaveOfficeReq
EnterOfficeNotification LeaveOfficeNotification ListRoomReq SessionInfo ListRoomRet UpdateComputerConfigReq
UpdateMCPConfigNotification UpdateToolListNotification GetComputerConfigReq GetComputerConfigRet GetDeskTopReq
Desktop GetDeskTopRet BaseMCPServerConfig MCPServerStdioParameters MCPServerStdioConfig
MCPServerStreamableHttpParameters MCPServerStreamableHttpConfig MCPSSEParameters MCPSSEConfig MCPServerConfig
MCPServerInputBase MCPServerPromptStringInput MCPServerPickStringInput MCPServerCommandInput MCPServerInput
Attributes AttributeValue GetFinderReq GetFinderRet DPEDocumentSummary CallToolResult
"""


def rpc(method: str, **params: Any) -> dict[str, Any]:
    payload: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": method}
    return {**ROUTE, "payload": {**payload, "params": params} if params else payload}


def notice(method: str, **params: Any) -> dict[str, Any]:
    envelope = rpc(method, **params)
    del envelope["payload"]["id"]
    return envelope


EXAMPLES: dict[str, dict[str, Any]] = {
    "ToolCallReq": CALL,
    "CallToolResult": {"content": [{"type": "text", "text": "hi"}], "isError": False},
    "GetComputerConfigReq": {**AGENT, "computer": "c"},
    "GetComputerConfigRet": {"inputs": None, "servers": {}},
    "GetToolsReq": {**AGENT, "computer": "c"},
    "GetToolsRet": {"tools": [], "req_id": "r"},
    "GetStatusReq": {**AGENT, "computer": "c"},
    "GetStatusRet": {"servers": [], "config_problem": "not JSON", "req_id": "r"},
    "GetDeskTopReq": {**AGENT, "computer": "c", "desktop_size": 3, "window": "window://h/a"},
    "GetDeskTopRet": {"desktops": ["window://h"], "req_id": "r"},
    "GetFinderReq": {**AGENT, "computer": "c", "keywords": ["x"], "file_type": "pdf", "offset": 0, "limit": 20},
    "GetFinderRet": {"documents": [], "total_count": 0, "req_id": "r"},
    "EnterOfficeReq": {"role": "computer", "name": "c", "office_id": "o"},
    "LeaveOfficeReq": {"office_id": "o"},
    "ListRoomReq": {**AGENT, "office_id": "o"},
    "ListRoomRet": {"sessions": [{"sid": "s", "name": "c", "role": "computer", "office_id": "o"}], "req_id": "r"},
    "AgentCallData": AGENT,
    "UpdateComputerConfigReq": {"computer": "c"},
    "UpdateMCPConfigNotification": {"computer": "c"},
    "UpdateToolListNotification": {"computer": "c"},
    "ToolProgressReq": {"agent": "a", "req_id": "r", "progress": 1.5, "total": 2.0, "message": "half"},
    "ToolProgressNotification": {"agent": "a", "req_id": "r", "computer": "c", "progress": 1.5},
    "UpdateCapabilitiesReq": {"computer": "c", "capabilities": {"resources": {"subscribe": True, "listChanged": True}}},
    "EnterOfficeNotification": {"office_id": "o", "computer": "c"},
    "LeaveOfficeNotification": {"office_id": "o", "agent": "a"},
    "ListResourcesReq": rpc("resources/list", cursor="optional-cursor-value"),
    "ReadResourceReq": rpc("resources/read", uri="file:///project/src/main.rs"),
    "ListResourceTemplatesReq": rpc("resources/templates/list"),
    "SubscribeResourceReq": rpc("resources/subscribe", uri="file:///project/src/main.rs"),
    "UnsubscribeResourceReq": rpc("resources/unsubscribe", uri="file:///project/src/main.rs"),
    "ResourceRet": {**ROUTE, "payload": {"jsonrpc": "2.0", "id": 2, "result": {"resources": []}}},
    "CompleteReq": rpc(
        "completion/complete",
        ref={"type": "ref/resource", "uri": "dpe://com.example.docs/{doc_ref}/pages/{page_index}"},
        argument={"name": "doc_ref", "value": "rpt"},
    ),
    "ListPromptsReq": rpc("prompts/list"),
    "GetPromptReq": rpc("prompts/get", name="greet", arguments={"who": "anna"}),
    "ResourceListChangedNotification": notice("notifications/resources/list_changed"),
    "ResourceUpdatedNotification": notice("notifications/resources/updated", uri="file:///a", title="A"),
}

MODELS = sorted({m for row in CATALOG.values() for m in (row.request, row.reply) if m}, key=lambda m: m.__name__)


def dumped(model: BaseModel) -> Any:
    return json.loads(model.model_dump_json(by_alias=True, exclude_unset=True))


@pytest.mark.rule(
    "events.list.{client:tool_call.request,client:tool_call.reply,client:get_config.request}",
    "events.list.{client:get_config.reply,client:get_tools.request,client:get_tools.reply}",
    "events.list.{client:get_desktop.request,client:get_desktop.reply,client:get_finder.request}",
    "events.list.{client:get_finder.reply,server:join_office.request,server:leave_office.request}",
    "events.list.{server:update_config.request,server:update_tool_list.request}",
    "events.list.{server:update_desktop.request,server:update_finder.request}",
    "events.list.{server:tool_call_cancel.request,server:list_room.request,notify:enter_office.data}",
    "events.list.{notify:leave_office.data,notify:update_config.data,notify:update_tool_list.data}",
    "events.list.{notify:update_desktop.data,notify:update_finder.data,notify:tool_call_cancel.data}",
)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_whole_structure_goes_in_and_out_unchanged(model: type[BaseModel]) -> None:
    example = EXAMPLES[model.__name__]
    assert dumped(model.model_validate(example)) == example
    assert dumped(model.model_validate_json(json.dumps(example))) == example


@pytest.mark.rule("answers.unknown-fields.structures")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_unknown_fields_are_kept(model: type[BaseModel]) -> None:
    example = {**EXAMPLES[model.__name__], "x-new": {"deep": [1, None, "é"]}, "model_dump": 1, "_private": 2}
    assert dumped(model.model_validate(example)) == example


@pytest.mark.rule("data-structures.conventions.objects")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("body", [[], "", 1, None, True])
def test_a_structure_that_is_no_object_is_refused(model: type[BaseModel], body: object) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(body)


@pytest.mark.rule("data-structures.conventions.optional")
@pytest.mark.parametrize(
    ("model", "field"),
    [
        (model, name)
        for model in MODELS
        for name, info in model.model_fields.items()
        if info.is_required() and name in EXAMPLES[model.__name__]
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_required_field_may_not_be_missing_or_null(model: type[BaseModel], field: str) -> None:
    example = dict(EXAMPLES[model.__name__])
    with pytest.raises(ValidationError):
        model.model_validate({**example, field: None})
    del example[field]
    with pytest.raises(ValidationError):
        model.model_validate(example)


@pytest.mark.rule("answers.strict")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_field_of_another_type_is_refused(model: type[BaseModel]) -> None:
    example = EXAMPLES[model.__name__]
    for field in set(example) & set(model.model_fields):
        with pytest.raises(ValidationError):
            model.model_validate({**example, field: object()})


@pytest.mark.rule("data-structures.names")
def test_the_names_of_the_pages_are_exported() -> None:
    assert set(NAMES.split()) <= set(vars(schemas))


@pytest.mark.rule("answers.names.nfc")
def test_names_are_brought_to_nfc() -> None:
    assert ToolCallReq.model_validate({**CALL, "computer": "e\u0301"}).computer == "\u00e9"


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)))
def test_parameters_of_a_tool_are_not_touched(params: dict[str, Any]) -> None:
    assert ToolCallReq.model_validate({**CALL, "params": params}).params == params


@pytest.mark.rule("answers.traceparent")
def test_a_traced_agent_may_say_so() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert ToolCallReq.model_validate({**CALL, "traceparent": parent}).traceparent == parent
    assert ToolCallReq.model_validate(CALL).traceparent is None


@pytest.mark.rule("data-structures.meta.scenario-1")
def test_scenario_1_a_tool_without_configured_metadata() -> None:
    tool = {
        "name": "hello",
        "description": "Say hello to someone.",
        "params_schema": {
            "properties": {"name": {"default": "World", "title": "Name", "type": "string"}},
            "title": "helloArguments",
            "type": "object",
        },
        "return_schema": {
            "properties": {"result": {"title": "Result", "type": "string"}},
            "required": ["result"],
            "title": "helloOutput",
            "type": "object",
        },
        "meta": {},
    }
    assert dumped(SMCPTool.model_validate(tool)) == tool


@pytest.mark.rule("events.get_tools.note.json-string", "data-structures.meta.scenario-2")
def test_scenario_2_a_tool_with_default_metadata() -> None:
    written = '{"auto_apply": true, "alias": null, "tags": ["browser"], "ret_object_mapper": null}'
    tool = {
        "name": "browser_navigate",
        "description": "Navigate to a URL.",
        "params_schema": {"...": "..."},
        "return_schema": {"...": "..."},
        "meta": {"a2c_tool_meta": written},
    }
    assert dumped(GetToolsRet.model_validate({"tools": [tool], "req_id": "r"})) == {"tools": [tool], "req_id": "r"}
    meta = ToolMeta.model_validate({"tags": ["browser"], "auto_apply": True})
    assert json.dumps(meta.model_dump()) == written
    assert ToolMeta.model_validate_json(written) == meta.model_copy(update=json.loads(written))


@pytest.mark.rule("data-structures.meta.scenario-2.parsed")
def test_tool_metadata_is_all_optional_and_null_by_default() -> None:
    assert ToolMeta().model_dump() == {"auto_apply": None, "alias": None, "tags": None, "ret_object_mapper": None}


@pytest.mark.rule("events.tool_call.reply")
def test_a_result_keeps_whatever_mcp_put_into_it() -> None:
    result = {
        "content": [{"type": "image", "data": "AA==", "mimeType": "image/png", "annotations": {"priority": 0.5}}],
        "structuredContent": {"a": [1, 2]},
        "isError": True,
        "meta": {"a2c_timeout": True},
        "resultType": "complete",
    }
    assert dumped(CallToolResult.model_validate(result)) == result


def test_a_published_clients_answer_is_a_valid_result() -> None:
    """pydantic dumps of the MCP SDK write null where nothing is."""
    result = CallToolResult.model_validate(
        {"meta": None, "content": [{"type": "text", "text": "x"}], "structuredContent": None, "isError": False}
    )
    assert (result.meta, result.structuredContent, result.isError) == (None, None, False)
    assert CallToolResult.model_validate({}).content == []


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
    assert Sized(size=None).model_dump_json() == "{}"
    assert Sized(size=0).model_dump() == {"size": 0}


@pytest.mark.parametrize("model", [schemas.ResourceFeatures, schemas.ResourceCapability])
def test_unstated_resource_capabilities_count_as_absent(model: type[schemas.ResourceFeatures]) -> None:
    assert (model().subscribe, model().listChanged) == (False, False)
