"""`SMCPTool.meta`, against the page's scenarios with a real MCP server, and rule by rule; and the check of arguments
against a tool's schema.
"""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.json_schema import LONGEST_REASON, Schema
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.transports import Limits
from smcp_computer.tools import Catalogue, attributes
from smcp_proto.schemas.tools import ToolMeta
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs


@asynccontextmanager
async def listed(**servers: dict[str, Any]) -> AsyncIterator[dict[str, dict[str, Any]]]:
    config = parse_config(json.dumps({"servers": servers}))
    fleet = Fleet(config, InputResolver({}, {}), limits=Limits(), on_change=lambda: None)
    async with background() as tasks:
        running = tasks.start(fleet.run(), name="fleet")
        await fleet.wait_settled()
        catalogue = Catalogue(fleet.supervisors)
        catalogue.refresh()
        yield {tool.name: json.loads(tool.model_dump_json(exclude_unset=True)) for tool in catalogue.listing}
        fleet.stop()
        await running


@pytest.mark.rule("data-structures.meta.scenario-1", "answers.tools.meta.none")
async def test_scenario_1_nothing_is_configured() -> None:
    async with listed(hello=configs.stdio("hello", default_tool_meta=None)) as tools:
        assert tools["hello"] == {
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


@pytest.mark.rule(
    "events.get_tools.note.json-string",
    "data-structures.{meta.namespace.a2c_tool_meta,meta.not-flattened,meta.json-string,meta.scenario-2}",
    "data-structures.{ToolMeta.tags.meaning,BaseMCPServerConfig.default_tool_meta.meaning}",
    "computer.architecture.3.1",
)
async def test_scenario_2_a_default_is_configured() -> None:
    default = {"tags": ["browser"], "auto_apply": True}
    async with listed(hello=configs.stdio("hello", default_tool_meta=default)) as tools:
        assert tools["browser_navigate"]["meta"] == {
            "a2c_tool_meta": '{"auto_apply": true, "alias": null, "tags": ["browser"], "ret_object_mapper": null}'
        }


@pytest.mark.rule(
    "data-structures.{meta.json-string,meta.scenario-2.parsed,BaseMCPServerConfig.tool_meta.meaning}",
    "data-structures.BaseMCPServerConfig.default_tool_meta.meaning",
    "computer.{challenge.tools,config.meta}",
    "answers.config.{tool_meta.key,default.whole}",
)
async def test_an_entry_of_its_own_replaces_the_default_as_a_whole() -> None:
    server = configs.stdio(
        "hello",
        default_tool_meta={"tags": ["browser"], "auto_apply": True},
        tool_meta={"hello": {"alias": "greet"}},
    )
    async with listed(hello=server) as tools:
        assert set(tools) == {"greet", "browser_navigate"}
        assert json.loads(tools["greet"]["meta"]["a2c_tool_meta"]) == {
            "auto_apply": None,
            "alias": "greet",
            "tags": None,
            "ret_object_mapper": None,
        }


@pytest.mark.rule("data-structures.meta.{complex,namespace.MCP_TOOL_ANNOTATION,namespace.others}")
async def test_the_metadata_of_a_servers_tools_are_passed_on() -> None:
    async with listed(box=configs.stdio()) as tools:
        meta = tools["add"]["meta"]
        assert meta == {
            "owner": "math",
            "levels": "[1]",
            "MCP_TOOL_ANNOTATION": '{"title": "Adder", "readOnlyHint": true}',
        }


@pytest.mark.rule(
    "data-structures.BaseMCPServerConfig.forbidden_tools.meaning",
    "computer.challenge.isolation",
    "answers.config.forbidden.{original,alias}",
)
async def test_a_forbidden_tool_is_not_listed_by_its_name_or_its_alias() -> None:
    server = configs.stdio(forbidden_tools=["echo", "plus"], tool_meta={"add": {"alias": "plus"}})
    async with listed(box=server) as tools:
        assert not {"echo", "add", "plus"} & set(tools)


@pytest.mark.rule("computer.config.allowed", "answers.tools.names.qualified")
async def test_names_that_two_servers_share_are_qualified() -> None:
    async with listed(a=configs.stdio("hello"), b=configs.stdio("hello", forbidden_tools=["hello"])) as tools:
        assert set(tools) == {"hello", "a__browser_navigate", "b__browser_navigate"}


async def test_a_tool_whose_results_are_replaced_promises_no_shape() -> None:
    mapper = {"add": {"ret_object_mapper": {"result": "sum"}}}
    async with listed(box=configs.stdio(tool_meta=mapper, replace_content=True)) as tools:
        assert tools["add"]["return_schema"] is None
        assert tools["pid"]["return_schema"]["type"] == "object"


def tool(sent: dict[str, Any]) -> types.Tool:
    return types.Tool.model_validate({"name": "t", "inputSchema": {}, "annotations": {}, "_meta": sent})


@pytest.mark.rule("data-structures.meta.complex", "answers.tools.meta.simple", "answers.tools.meta.other")
def test_simple_values_stay_and_everything_else_is_a_json_string() -> None:
    sent = {"s": "x", "t": True, "i": 1, "f": 0.5, "n": None, "l": ["a", "b"], "e": [], "m": ["a", 1], "d": {"读": 1}}
    assert attributes(tool(sent), None) == {
        **{key: sent[key] for key in ("s", "t", "i", "f", "n", "l", "e")},
        "m": '["a", 1]',
        "d": '{"读": 1}',
    }


@pytest.mark.rule("data-structures.meta.namespace.{a2c_tool_meta,MCP_TOOL_ANNOTATION}", "answers.tools.meta.dropped")
def test_a_server_cannot_set_the_computers_own_meta_keys() -> None:
    sent = {"a2c_tool_meta": '{"auto_apply": true}', "MCP_TOOL_ANNOTATION": "{}", "mine": 1}
    assert attributes(tool(sent), None) == {"mine": 1}
    assert json.loads(str(attributes(tool(sent), ToolMeta(auto_apply=False))["a2c_tool_meta"]))["auto_apply"] is False


def test_title_and_icons_of_a_tool_are_kept_as_json() -> None:
    listed = {"name": "t", "inputSchema": {}, "title": "Tool", "icons": [{"src": "https://example.com/i.png"}]}
    sent = types.Tool.model_validate({**listed, "_meta": {"a2c_mcp_tool": "{}"}})
    kept = json.loads(str(attributes(sent, None)["a2c_mcp_tool"]))
    assert kept == {"title": "Tool", "icons": [{"src": "https://example.com/i.png"}]}
    assert attributes(tool({"a2c_mcp_tool": "{}"}), None) == {}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 0},
        "how": {"enum": ["a", "b"]},
        "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
    },
    "required": ["text"],
    "additionalProperties": False,
}


@pytest.mark.rule("answers.tools.arguments")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, 'params: "text" is a required property'),
        ({"text": 1}, 'params.text: the value is not of type "string"'),
        ({"text": "", "count": -1}, "params.count: the value is less than the minimum of 0"),
        ({"text": "", "how": "c"}, 'params.how: the value is not one of "a" or "b"'),
        ({"text": "", "list": [{"n": 1}, {"n": "s3cret"}]}, 'params.list.1.n: the value is not of type "number"'),
        ({"text": "", "txt": ""}, "params: Additional properties are not allowed ('txt' was unexpected)"),
    ],
)
def test_a_wrong_argument_is_named_with_its_path_and_without_its_value(params: dict[str, Any], message: str) -> None:
    assert said(SCHEMA, params) == message


def said(schema: dict[str, Any], params: dict[str, Any]) -> str:
    mistake = Schema(schema).mistake(params)
    return "" if mistake is None else f"{'.'.join(['params', *mistake[0]])}: {mistake[1]}"


@pytest.mark.parametrize(
    "params",
    [
        {"text": "x"},
        {"text": "x", "count": 2**80, "how": "b"},
        {"text": "\ud800"},
        {"text": "x", "list": [{"n": 1e300}]},
    ],
)
def test_arguments_that_the_schema_takes_are_not_refused(params: dict[str, Any]) -> None:
    assert Schema(SCHEMA).mistake(params) is None


def test_what_is_said_of_a_mistake_stays_short_whatever_properties_are_called() -> None:
    mistake = Schema({"properties": {"a": {}}, "additionalProperties": False}).mistake({"x" * 20_000: 1})
    assert mistake is not None
    assert len(mistake[1]) == LONGEST_REASON


def test_a_name_that_is_no_text_is_left_to_the_server() -> None:
    assert Schema({"additionalProperties": False}).mistake({"\ud800": 1}) is None


def doubling(levels: int) -> dict[str, Any]:
    """The check of the last definition doubles with each level."""
    below = ({"anyOf": [{"$ref": f"#/$defs/d{level}"}] * 2} for level in range(levels))
    return {"d0": {"type": "integer"}} | {f"d{level}": each for level, each in enumerate(below, 1)}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/hostname"},
        {"$schema": "http://127.0.0.1:9/draft"},
        {"properties": {"text": {"pattern": "("}}},
        {"properties": {"text": {"pattern": "(?=(a+)+b)(a+)+$"}}},
        {"$ref": "#/$defs/nothing"},
        {"$defs": doubling(30), "properties": {"x": {"$ref": "#/$defs/d30"}}},
        {"$defs": {"tree": {"anyOf": [{"items": {"$ref": "#/$defs/tree"}}] * 2}}, "$ref": "#/$defs/tree"},
        {"allOf": [{"allOf": [{"allOf": []}], "unevaluatedProperties": False}]},
        {"anyOf": [{"const": number} for number in range(2000)]},
    ],
)
def test_a_schema_that_cannot_be_used_or_is_elsewhere_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Schema(schema)


def test_a_tree_is_checked_and_a_long_list_does_not_hold_up_others() -> None:
    node = {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "n": {"type": "integer"}}}
    listed = {"list": {"anyOf": [{"items": {"type": "integer"}}] * 2}, "node": {"$ref": "#/$defs/node"}}
    schema = Schema({"$defs": {"node": node}, "properties": {**listed, "plain": {"items": {"type": "integer"}}}})
    assert schema.mistake({"node": {"next": {"next": None, "n": 1}}}) is None
    assert schema.mistake({"node": {"n": "1"}}) == (["node", "n"], 'the value is not of type "integer"')
    assert schema.mistake({"list": [1, "2"]}) is not None
    began = time.process_time()
    assert schema.mistake({"list": ["1"] * 50_000}) == ([], "does not fit the schema")
    assert Schema({"items": {"type": "integer"}}).mistake(["1"] * 50_000) is not None  # type: ignore[arg-type]
    assert time.process_time() - began < 1
