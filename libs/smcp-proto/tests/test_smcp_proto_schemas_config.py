"""Configuration of MCP servers and inputs: defaults, ranges, what is refused."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from smcp_proto.schemas import SERVER_CONFIG, SERVER_INPUT, GetComputerConfigRet
from smcp_proto.validation import malformed


def stdio(**parameters: object) -> dict[str, Any]:
    return {"name": "x", "type": "stdio", "server_parameters": {"command": "a", **parameters}}


def http(kind: str, **parameters: object) -> dict[str, Any]:
    return {"name": "x", "type": kind, "server_parameters": {"url": "u", **parameters}}


def field_of(value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        SERVER_CONFIG.validate_python(value)
    return str(malformed(caught.value).details["field"])


def test_a_whole_configuration_goes_in_and_out_unchanged() -> None:
    reply: dict[str, Any] = {
        "inputs": [
            {"id": "token", "description": "API token", "type": "promptString", "default": None, "password": True},
            {"id": "env", "description": "Where", "type": "pickString", "options": ["dev", "prod"], "default": "dev"},
            {"id": "key", "description": "Key", "type": "command", "command": "pass", "args": {"show": "key"}},
        ],
        "servers": {
            "git": {
                "name": "git",
                "type": "stdio",
                "disabled": True,
                "forbidden_tools": ["rm"],
                "tool_meta": {"log": {"tags": ["vcs"], "alias": "git_log", "auto_apply": None}},
                "default_tool_meta": {"ret_object_mapper": {"a": {"b": "c"}}},
                "vrl": ".x = 1",
                "x-note": "kept",
                "server_parameters": {
                    "command": "uvx",
                    "args": ["mcp-server-git"],
                    "env": {"TOKEN": "${input:token}"},
                    "cwd": "${env:HOME}",
                    "encoding": "utf-8",
                    "encoding_error_handler": "replace",
                },
            },
            "web": {
                "name": "web",
                "type": "streamable",
                "server_parameters": {
                    "url": "${env:URL}",
                    "headers": {"Authorization": "<redacted>", "X-N": 1},
                    "timeout": "${input:t}",
                    "sse_read_timeout": "PT300S",
                    "terminate_on_close": False,
                },
            },
            "old": {
                "name": "old",
                "type": "sse",
                "server_parameters": {"url": "u", "timeout": 7, "sse_read_timeout": 0.5},
            },
        },
    }
    model = GetComputerConfigRet.model_validate(reply)
    assert json.loads(model.model_dump_json(exclude_unset=True)) == reply
    assert GetComputerConfigRet.model_validate_json(json.dumps(reply)) == model


@pytest.mark.rule("computer.challenge.typed")
@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"name": "x", "type": "http", "server_parameters": {}}, "type"),
        ({"name": "x", "server_parameters": {}}, "type"),
        ({"name": "x", "type": 1}, "type"),
        ([], "type"),
        ({"type": "stdio", "server_parameters": {"command": "a"}}, "name"),
        ({"name": "", "type": "stdio", "server_parameters": {"command": "a"}}, "name"),
        ({"name": "x", "type": "stdio"}, "server_parameters"),
        ({"name": "x", "type": "stdio", "server_parameters": {}}, "server_parameters.command"),
        (stdio(command=""), "server_parameters.command"),
        (stdio(args="b"), "server_parameters.args"),
        (stdio(args=[1]), "server_parameters.args.0"),
        (stdio(env={"A": 1}), "server_parameters.env.A"),
        (stdio(cwd=1), "server_parameters.cwd"),
        (stdio(encoding_error_handler="x"), "server_parameters.encoding_error_handler"),
        (http("streamable", timeout=30), "server_parameters.timeout"),
        (http("streamable", timeout="30"), "server_parameters.timeout"),
        (http("streamable", sse_read_timeout="PT0S"), "server_parameters.sse_read_timeout"),
        (http("streamable", terminate_on_close=1), "server_parameters.terminate_on_close"),
        (http("streamable", url=""), "server_parameters.url"),
        (http("streamable", headers="x"), "server_parameters.headers"),
        (http("sse", timeout="PT5S"), "server_parameters.timeout"),
        (http("sse", timeout=0), "server_parameters.timeout"),
        (http("sse", timeout=float("inf")), "server_parameters.timeout"),
        (http("sse", sse_read_timeout=-1.0), "server_parameters.sse_read_timeout"),
        ({**http("sse"), "disabled": "no"}, "disabled"),
        ({**http("sse"), "forbidden_tools": [1]}, "forbidden_tools.0"),
        ({**http("sse"), "vrl": 1}, "vrl"),
        ({**http("sse"), "tool_meta": {"t": {"tags": "a"}}}, "tool_meta.t.tags"),
        ({**http("sse"), "default_tool_meta": {"auto_apply": "yes"}}, "default_tool_meta.auto_apply"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(value: object, field: str) -> None:
    assert field_of(value) == field


def test_a_wrong_server_is_named_by_its_key_even_if_it_looks_like_a_type() -> None:
    servers = {"stdio": {"name": "stdio", "type": "stdio", "server_parameters": {}}}
    with pytest.raises(ValidationError) as caught:
        GetComputerConfigRet.model_validate({"servers": servers})
    assert malformed(caught.value).details == {
        "field": "servers.stdio.server_parameters.command",
        "reason": "is missing",
    }


@pytest.mark.rule("data-structures.MCPServerConfig.types")
def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError) as caught:
        SERVER_CONFIG.validate_python({"name": "x", "type": "http" * 5000})
    assert malformed(caught.value).message == "type: is unknown or missing; known are stdio, streamable, sse"


@pytest.mark.rule("data-structures.MCPServerInput.union")
@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"id": "a", "description": "", "type": "prompt"}, "type"),
        ({"id": "", "description": "", "type": "promptString"}, "id"),
        ({"id": "a", "type": "promptString"}, "description"),
        ({"id": "a", "description": "", "type": "promptString", "password": "yes"}, "password"),
        ({"id": "a", "description": "", "type": "pickString"}, "options"),
        ({"id": "a", "description": "", "type": "command"}, "command"),
        ({"id": "a", "description": "", "type": "command", "command": "x", "args": ["a"]}, "args"),
    ],
)
def test_a_wrong_input_is_named(value: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SERVER_INPUT.validate_python(value)
    assert malformed(caught.value).details["field"] == field
