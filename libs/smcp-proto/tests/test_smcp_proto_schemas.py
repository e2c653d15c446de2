"""Properties of every structure, and the structures of tools and rooms."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from smcp_proto import schemas
from smcp_proto.catalog import CATALOG
from smcp_proto.schemas import (
    AgentCallData,
    CallToolResult,
    GetToolsRet,
    SMCPTool,
    ToolCallReq,
    ToolMeta,
)

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
    "events.list.client:tool_call.request",
    "events.list.client:tool_call.reply",
    "events.list.client:get_config.request",
    "events.list.client:get_config.reply",
    "events.list.client:get_tools.request",
    "events.list.client:get_tools.reply",
    "events.list.client:get_desktop.request",
    "events.list.client:get_desktop.reply",
    "events.list.client:get_finder.request",
    "events.list.client:get_finder.reply",
    "events.list.server:join_office.request",
    "events.list.server:leave_office.request",
    "events.list.server:update_config.request",
    "events.list.server:update_tool_list.request",
    "events.list.server:update_desktop.request",
    "events.list.server:update_finder.request",
    "events.list.server:tool_call_cancel.request",
    "events.list.server:list_room.request",
    "events.list.notify:enter_office.data",
    "events.list.notify:leave_office.data",
    "events.list.notify:update_config.data",
    "events.list.notify:update_tool_list.data",
    "events.list.notify:update_desktop.data",
    "events.list.notify:update_finder.data",
    "events.list.notify:tool_call_cancel.data",
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


@pytest.mark.rule("data-structures.conventions.objects")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_structure_has_a_json_schema(model: type[BaseModel]) -> None:
    assert model.model_json_schema()["type"] == "object"


@pytest.mark.rule("data-structures.names")
def test_the_names_of_the_pages_are_exported() -> None:
    assert set(NAMES.split()) <= set(vars(schemas))


@pytest.mark.rule("answers.calls.timeout.range")
@pytest.mark.parametrize("timeout", [1, 60, 3600])
def test_a_timeout_is_1_to_3600_seconds(timeout: int) -> None:
    assert ToolCallReq.model_validate({**CALL, "timeout": timeout}).timeout == timeout


@pytest.mark.rule("data-structures.conventions.seconds", "answers.calls.timeout.range")
@pytest.mark.parametrize("timeout", [0, -1, 3601, 1.5, 30.0, "30", True, None, 10**30])
def test_another_timeout_is_refused(timeout: object) -> None:
    with pytest.raises(ValidationError):
        ToolCallReq.model_validate({**CALL, "timeout": timeout})


@pytest.mark.rule("answers.req_id.form")
@pytest.mark.parametrize("req_id", ["r", "x" * 256, "请求 1", "list_computers_a_b", " ", "0" * 32])
def test_a_req_id_is_any_text_of_1_to_256_characters(req_id: str) -> None:
    assert AgentCallData.model_validate({**AGENT, "req_id": req_id}).req_id == req_id


@pytest.mark.rule("answers.req_id.form")
@pytest.mark.parametrize("req_id", ["", "x" * 257, "a\x00", "a\n", "\x7f", "\x85", 1, None, ["r"], "\ud800"])
def test_another_req_id_is_refused(req_id: object) -> None:
    with pytest.raises(ValidationError):
        AgentCallData.model_validate({**AGENT, "req_id": req_id})


@pytest.mark.parametrize(("field", "value"), [("agent", "a\x00"), ("computer", ""), ("computer", "x" * 10_000)])
def test_an_illegal_name_is_refused(field: str, value: str) -> None:
    with pytest.raises(ValidationError):
        ToolCallReq.model_validate({**CALL, field: value})


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


@pytest.mark.rule("data-structures.meta.attributes")
@pytest.mark.parametrize("value", ["s", True, 1, 1.5, None, ["a", "b"], []])
def test_the_meta_of_a_tool_holds_scalars_and_lists_of_strings(value: object) -> None:
    tool = {"name": "t", "description": "", "params_schema": {}, "return_schema": None, "meta": {"k": value}}
    assert dumped(SMCPTool.model_validate(tool)) == tool


@pytest.mark.rule("data-structures.meta.attributes", "data-structures.alias.Attributes")
@pytest.mark.parametrize("value", [{}, [1], [["a"]], {"a": 1}])
def test_the_meta_of_a_tool_holds_nothing_else(value: object) -> None:
    with pytest.raises(ValidationError):
        SMCPTool.model_validate({"name": "t", "description": "", "params_schema": {}, "meta": {"k": value}})


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
