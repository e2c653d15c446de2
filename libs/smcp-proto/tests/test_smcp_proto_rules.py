"""The structures of the pages `data-structures` and `events` have the fields that `smcp_testing.page_fields` lists."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from smcp_proto import schemas
from smcp_proto.schemas import base
from smcp_proto.validation import malformed
from smcp_testing.page_fields import ABSENT, CONFIG, FIELDS, HTTP, SERVER_NAME, TEXT, TOOL_NAME, Field, Kind

BEYOND_THE_PAGES = {
    "ToolCallReq": {
        *("traceparent", "a2c_progress", "a2c_progress_event", "a2c_repeat"),
        *("input_state", "input_responses", "a2c_on_behalf"),
    },
    "AgentCallData": {"traceparent"},
    "GetToolsReq": {"traceparent"},
    "ListRoomReq": {"traceparent"},
    "GetComputerConfigReq": {"traceparent"},
    "GetDeskTopReq": {"traceparent"},
    "GetFinderReq": {"traceparent"},
    "GetFinderRet": {"a2c_as_listed"},
    "GetDeskTopRet": {"a2c_ages", "a2c_missing"},
    "EnterOfficeReq": {"capabilities"},
    "SessionInfo": {"a2c_version", "capabilities"},
}
"""Fields that the answers add; all are optional."""

ROWS = [pytest.param(row, id=row.id, marks=pytest.mark.rule(*row.rules)) for row in FIELDS]
STRUCTURES = sorted({row.structure for row in FIELDS})


def model_of(structure: str) -> type[BaseModel]:
    model: type[BaseModel] = getattr(schemas, structure)
    return model


def smallest(structure: str) -> dict[str, Any]:
    """A body with what has to be there, and nothing else."""
    return {row.name: row.kind.good[0] for row in FIELDS if row.structure == structure and row.default is ...}


def wrong_field(structure: str, body: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        model_of(structure).model_validate(body)
    return str(malformed(caught.value).details["field"])


@pytest.mark.parametrize("row", ROWS)
def test_a_field_accepts_exactly_the_values_of_the_page(row: Field) -> None:
    body = smallest(row.structure)
    for value in row.kind.good:
        read = model_of(row.structure).model_validate({**body, row.name: value})
        assert read.model_dump(exclude_unset=True)[row.name] == value
    for value in row.kind.bad:
        assert wrong_field(row.structure, {**body, row.name: value}).split(".")[0] == row.name, value


@pytest.mark.rule("data-structures.conventions.optional")
@pytest.mark.parametrize("row", ROWS)
def test_a_field_may_be_left_out_where_the_page_says_so(row: Field) -> None:
    body = {name: value for name, value in smallest(row.structure).items() if name != row.name}
    if row.default is ...:
        assert wrong_field(row.structure, body) == row.name
        return
    read = model_of(row.structure).model_validate(body)
    assert row.name not in read.model_dump(exclude_unset=True)
    assert getattr(read, row.name) == (None if row.default is ABSENT else row.default)


@pytest.mark.rule(
    "data-structures.{AgentCallData.whole,ToolCallReq.whole,SMCPTool.whole,ToolMeta.whole}",
    "data-structures.{GetToolsReq.whole,GetToolsRet.whole,EnterOfficeReq.whole,LeaveOfficeReq.whole}",
    "data-structures.{EnterOfficeNotification.whole,LeaveOfficeNotification.whole,ListRoomReq.whole}",
    "data-structures.{SessionInfo.whole,ListRoomRet.whole,UpdateComputerConfigReq.whole}",
    "data-structures.{UpdateMCPConfigNotification.whole,UpdateToolListNotification.whole}",
    "data-structures.{GetComputerConfigReq.whole,GetComputerConfigRet.whole,GetDeskTopReq.whole}",
    "data-structures.{GetDeskTopRet.whole,MCPServerStdioParameters.whole}",
    "data-structures.{MCPServerStreamableHttpParameters.whole,MCPSSEParameters.whole}",
    "data-structures.{MCPServerPromptStringInput.whole,MCPServerPickStringInput.whole}",
    "data-structures.MCPServerCommandInput.whole",
)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_structure_has_the_fields_of_the_page_and_those_that_the_answers_add(structure: str) -> None:
    written = {row.name for row in FIELDS if row.structure == structure}
    ours = BEYOND_THE_PAGES.get(structure, set())
    assert set(model_of(structure).model_fields) == written | ours
    assert not any(model_of(structure).model_fields[name].is_required() for name in ours)


@pytest.mark.rule("data-structures.conventions.snake_case")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_fields_of_a_structure_are_called_in_snake_case(structure: str) -> None:
    assert all(name.isidentifier() and name == name.lower() for name in model_of(structure).model_fields)


@pytest.mark.rule(
    "data-structures.{ToolCallReq.base,GetToolsReq.base,ListRoomReq.base,GetComputerConfigReq.base}",
    "data-structures.GetDeskTopReq.base",
)
@pytest.mark.parametrize(
    "structure",
    ["ToolCallReq", "GetToolsReq", "GetComputerConfigReq", "GetDeskTopReq", "GetFinderReq", "ListRoomReq"],
)
def test_a_request_of_an_agent_is_built_on_its_call_data(structure: str) -> None:
    assert issubclass(model_of(structure), schemas.AgentCallData)


@pytest.mark.rule(
    "data-structures.{MCPServerStdioConfig.base,MCPServerStreamableHttpConfig.base,MCPSSEConfig.base}",
    "data-structures.{MCPServerPromptStringInput.base,MCPServerPickStringInput.base}",
    "data-structures.MCPServerCommandInput.base",
)
@pytest.mark.parametrize(
    ("structure", "parent"),
    [
        ("MCPServerStdioConfig", "BaseMCPServerConfig"),
        ("MCPServerStreamableHttpConfig", "BaseMCPServerConfig"),
        ("MCPSSEConfig", "BaseMCPServerConfig"),
        ("MCPServerPromptStringInput", "MCPServerInputBase"),
        ("MCPServerPickStringInput", "MCPServerInputBase"),
        ("MCPServerCommandInput", "MCPServerInputBase"),
    ],
)
def test_a_structure_is_built_on_its_base(structure: str, parent: str) -> None:
    assert issubclass(model_of(structure), model_of(parent))
    assert set(model_of(parent).model_fields) <= {row.name for row in FIELDS if row.structure == structure}


def members(union: TypeAdapter[Any], *bodies: dict[str, Any]) -> Iterator[str]:
    for body in bodies:
        yield type(union.validate_python(body)).__name__


@pytest.mark.rule("data-structures.MCPServerConfig.union", "computer.config.by-type")
def test_the_configuration_of_a_server_is_one_of_three() -> None:
    kinds = [{"name": "n", "type": kind, "server_parameters": HTTP} for kind in ("streamable", "sse")]
    assert list(members(schemas.SERVER_CONFIG, CONFIG, *kinds)) == [
        "MCPServerStdioConfig",
        "MCPServerStreamableHttpConfig",
        "MCPSSEConfig",
    ]


@pytest.mark.rule("data-structures.MCPServerInput.union")
def test_the_definition_of_an_input_is_one_of_three() -> None:
    head = {"id": "i", "description": ""}
    assert list(
        members(
            schemas.SERVER_INPUT,
            {**head, "type": "promptString"},
            {**head, "type": "pickString", "options": []},
            {**head, "type": "command", "command": "c"},
        )
    ) == ["MCPServerPromptStringInput", "MCPServerPickStringInput", "MCPServerCommandInput"]


@pytest.mark.rule("data-structures.{Desktop.alias,alias.SERVER_NAME,alias.TOOL_NAME,alias.Desktop}")
@pytest.mark.parametrize(("alias", "kind"), [("ServerName", SERVER_NAME), ("ToolName", TOOL_NAME), ("Desktop", TEXT)])
def test_a_type_alias_is_text(alias: str, kind: Kind) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(getattr(schemas, alias), config={"strict": True})
    for value in kind.good:
        assert adapter.validate_python(value) == value
    for value in kind.bad:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


@pytest.mark.rule("data-structures.alias.AttributeValue", "data-structures.alias.Attributes")
@pytest.mark.parametrize("value", ["x", 1, 1.5, True, None])
def test_an_attribute_is_text_a_number_a_boolean_or_null(value: object) -> None:
    assert TypeAdapter(base.Attributes).validate_python({"k": value}) == {"k": value}
