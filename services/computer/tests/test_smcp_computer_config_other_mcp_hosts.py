"""Files that people have: comments, the page's own shape, and those of other MCP hosts."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.config.file import load_config, parse_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.other_mcp_hosts import own_server
from smcp_proto.schemas.config import (
    MCPServerPickStringInput,
    MCPServerStdioConfig,
    MCPServerStdioParameters,
    MCPServerStreamableHttpConfig,
    MCPSSEConfig,
)

VS_CODE = """{
  // as VS Code writes it
  "inputs": [
    {"type": "promptString", "id": "key", "description": "API key", "password": true},
    {"type": "pickString", "id": "region", "options": ["us", {"label": "Europe", "value": "eu"}], "default": "eu",},
  ],
  "servers": {
    "local": {
      "type": "stdio", "command": "npx", "args": ["-y", "x", "${workspaceFolder}/data"],
      "env": {"KEY": "${input:key}", "PORT": 8080, "HOME": null},
      "envFile": "${workspaceFolder}/.env", "dev": {"watch": "src/**"}
    }, /* and one
          behind HTTP */
    "web": {"type": "http", "url": "https://example.org/mcp?region=${input:region}", "headers": {"A": "//no comment"}},
  },
}"""


def parse(document: object) -> Any:
    return parse_config(json.dumps(document))


def flat(body: dict[str, Any]) -> Any:
    return parse({"mcpServers": {"x": body}})


def test_a_file_of_vs_code_is_read(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "mcp.json").write_text(VS_CODE)
    (tmp_path / ".env").write_text("# a comment\nexport TOKEN='a b'\nKEY=loses\nLITERAL=${input:key}$X\n")
    config = load_config(tmp_path / ".vscode" / "mcp.json")
    local, web = config.servers["local"], config.servers["web"]
    assert isinstance(local, MCPServerStdioConfig)
    assert local.server_parameters.args == ["-y", "x", f"{tmp_path}/data"]
    assert local.server_parameters.env == {
        "TOKEN": "a b",
        "KEY": "${input:key}",
        "LITERAL": "${input:key}$X",
        "PORT": "8080",
    }
    assert isinstance(web, MCPServerStreamableHttpConfig)
    assert web.server_parameters.headers == {"A": "//no comment"}
    region = config.inputs["region"]
    assert isinstance(region, MCPServerPickStringInput)
    assert (region.options, region.default, region.description) == (["us", "eu"], "eu", "region (eu: Europe)")
    assert config.warnings == ()


@pytest.mark.rule("computer.config.shape.type", "computer.config.shape.params", "computer.manager.type.http")
def test_the_shape_of_the_page_is_read() -> None:
    config = parse(
        {
            "excel": {"type": "stdio", "params": {"command": "x", "args": ["a"]}, "forbidden_tools": ["b"]},
            "web": {"type": "http", "params": {"url": "http://x"}},
            "old": {"type": "sse", "params": {"url": "http://x"}, "disabled": True},
        }
    )
    excel = config.servers["excel"]
    assert isinstance(excel, MCPServerStdioConfig)
    assert (excel.server_parameters.args, excel.forbidden_tools) == (["a"], ["b"])
    assert isinstance(config.servers["web"], MCPServerStreamableHttpConfig)
    assert isinstance(config.servers["old"], MCPSSEConfig)
    assert config.warnings == ()
    with pytest.raises(ConfigError, match=r"excel\.params\.command: is missing"):
        parse({"excel": {"type": "stdio", "params": {}}})


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"url": "http://x/mcp"}, "streamable"),
        ({"url": "http://x/sse"}, "sse"),
        ({"url": "http://x/sse", "type": "http", "timeout": "PT5S"}, "streamable"),
        ({"url": "http://x/mcp", "type": "streamable-http"}, "streamable"),
        ({"url": "http://x/mcp", "type": "streamableHttp"}, "streamable"),
        ({"url": "http://x/mcp", "type": "sse", "timeout": 30}, "sse"),
        ({"command": "x"}, "stdio"),
    ],
)
def test_the_type_is_read_or_follows_from_the_other_fields(body: dict[str, Any], kind: str) -> None:
    config = flat(body)
    assert config.servers["x"].type == kind
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("said", "kind", "unread"),
    [
        ({}, "stdio", "url: is not read: the server has a command, too, which is used"),
        ({"type": "stdio"}, "stdio", "url: is not read: the server has a command, too, which is used"),
        ({"type": "http"}, "streamable", "command: is not a known field"),
    ],
)
def test_a_server_with_a_url_and_a_command_is_what_its_type_says_or_a_program(
    said: dict[str, Any], kind: str, unread: str
) -> None:
    config = flat({"url": "http://x", "command": "y", **said})
    assert config.servers["x"].type == kind
    assert config.warnings == (f"mcpServers.x.{unread}",)


def test_warnings_come_in_the_same_order_each_time() -> None:
    unread = [f"setting{number}" for number in range(9)]
    for name, value in (("servers", {}), ("x", {"command": "y"})):
        warned = parse({**dict.fromkeys(unread, "odd"), name: value}).warnings
        assert [each.partition(":")[0] for each in warned if each.startswith("setting")] == unread
    of_programs = {"env_file": "e", "user": "u", "environment": ["E"], "limits": {}, "cgroup": {}}
    warned = flat({"url": "http://x", **of_programs}).warnings
    assert [each.partition(":")[0].rpartition(".")[2] for each in warned] == [*of_programs]


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ({"type": "http", "command": "y"}, "url"),
        ({"type": "sse", "command": "y"}, "url"),
        ({"type": "stdio", "url": "http://x"}, "command"),
    ],
)
def test_a_server_whose_type_is_another_one_lacks_what_the_type_needs(body: dict[str, Any], missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"mcpServers\.x\.{missing}: is missing"):
        flat(body)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"url": 7}, "mcpServers.x.url"),
        ({"command": "x", "envFile": 7}, "mcpServers.x.envFile"),
        ({"command": "x", "args": [7]}, "mcpServers.x.args.0"),
        ({"command": "x", "autoApprove": ["a"], "tool_meta": []}, "mcpServers.x.tool_meta"),
        ({"command": "x", "disabledTools": "a"}, "mcpServers.x.disabledTools"),
        ({"command": "x", "enabled": "no"}, "mcpServers.x.enabled"),
        ({"command": "x", "sandbox": {"home": {}}}, "mcpServers.x.sandbox.home"),
        ({"url": "http://x", "timeout": 60000}, "mcpServers.x.timeout"),
    ],
)
def test_an_error_names_the_field_as_it_is_written(body: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as raised:
        flat(body)
    assert raised.value.problems[0].startswith(f"{place}: ")


def test_tools_that_another_host_approves_forbids_or_disables_are_so_here() -> None:
    body = {
        "command": "x",
        "autoApprove": ["a", "b"],
        "alwaysAllow": ["c"],
        "tool_meta": {"b": {"auto_apply": False}},
        "forbidden_tools": ["d"],
        "disabledTools": ["e"],
        "excludeTools": ["f"],
    }
    before = copy.deepcopy(body)
    config = flat(body)
    server = config.servers["x"]
    assert {tool: meta.auto_apply for tool, meta in server.tool_meta.items()} == {"a": True, "b": False, "c": True}
    assert server.forbidden_tools == ["d", "e", "f"]
    assert not server.disabled
    assert config.warnings == ()
    own_server(body)
    assert body == before


@pytest.mark.parametrize("off", [{"enabled": False}, {"isActive": False}, {"enabled": False, "isActive": True}])
def test_a_server_that_another_host_switches_off_is_off_here(off: dict[str, bool]) -> None:
    config = flat({"command": "x", **off})
    assert (config.servers["x"].disabled, config.warnings) == (True, ())
    assert not flat({"command": "x", "enabled": True}).servers["x"].disabled


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("autoApprove", ["*"]),
        ("autoApprove", True),
        ("trust", True),
        ("includeTools", ["a"]),
        ("sandboxEnabled", True),
        ("sandbox", {"filesystem": {"allowWrite": ["."]}}),
        ("sandbox", {"network": {"allowedDomains": []}}),
    ],
)
def test_what_would_approve_or_confine_tools_and_is_not_read_is_a_warning(field: str, value: object) -> None:
    config = flat({"command": "x", field: value})
    (warning,) = config.warnings
    assert warning.startswith(f"mcpServers.x.{field}: ")
    assert config.servers["x"].tool_meta == {}


def test_a_star_among_approved_tools_is_a_warning_and_those_that_are_named_are_approved() -> None:
    config = flat({"command": "x", "alwaysAllow": ["a", "*"]})
    (warning,) = config.warnings
    assert warning.startswith("mcpServers.x.alwaysAllow: approves the tools that it names alone")
    assert {name: meta.auto_apply for name, meta in config.servers["x"].tool_meta.items()} == {"a": True}


def test_an_unknown_field_is_a_warning_and_one_that_resembles_ours_has_a_hint() -> None:
    config = flat({"command": "x", "autoStart": True, "forbiden_tools": ["a"]})
    assert sorted(config.warnings) == [
        "mcpServers.x.autoStart: is not a known field",
        "mcpServers.x.forbiden_tools: did you mean 'forbidden_tools'? It is not a known field",
    ]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("${TOKEN}", "write ${env:TOKEN}"),
        ("Bearer ${TOKEN:-sesame}", "write ${env:TOKEN}"),
        ("${env.TOKEN}", "write ${env:TOKEN}"),
        ("${{ secrets.TOKEN }}", "write ${env:TOKEN}"),
        ("${input:}", "write a value, ${input:ID} or ${env:NAME}"),
        ("${inputs.token}", "write a value, ${input:ID} or ${env:NAME}"),
        ("${}", "write a value, ${input:ID} or ${env:NAME}"),
        ("${file}", "write a value, ${input:ID} or ${env:NAME}"),
        ("${config:a.b}", "write a value, ${input:ID} or ${env:NAME}"),
        ("${env.token}", "write a value, ${input:ID} or ${env:NAME}"),
        ("Bearer $TOKEN", "write ${env:TOKEN}"),
        ("%APPDATA%/x", "write ${env:APPDATA}"),
    ],
)
def test_a_placeholder_that_is_not_replaced_is_warned_of(text: str, hint: str) -> None:
    config = flat({"command": "x", "env": {"A": text}})
    (warning,) = config.warnings
    assert warning.startswith(f"mcpServers.x.env.A: {hint}")
    assert "sesame" not in warning


@pytest.mark.parametrize("text", ["${env:TOKEN}", "a$b", "$2b$12$ABC", "100%", "%20x%20", "US$", "pa$$WORD", "$lower"])
def test_other_dollars_and_percents_are_no_warning(text: str) -> None:
    assert flat({"command": "x", "env": {"A": text}}).warnings == ()


@pytest.mark.parametrize("text", ['{"x": "${workspaceFolder}"}', '{"x": "${userHome}"}'])
def test_predefined_variables_are_replaced_where_the_file_is_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"mcpServers": {"x": {"command": "x", "args": [text]}}}))
    parameters = load_config(tmp_path / "c.json").servers["x"].server_parameters
    assert isinstance(parameters, MCPServerStdioParameters)
    where = str(tmp_path) if "Folder" in text else str(Path.home())
    assert json.loads(parameters.args[0]) == {"x": where}


def test_an_environment_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xff")
    for other, problems in ({}, 1), ({"disabled": 7}, 2):
        body = {"command": "x", "envFile": ".env", **other}
        (tmp_path / "c.json").write_text(json.dumps({"servers": {"x": body}}))
        with pytest.raises(ConfigError, match=r"servers\.x\.envFile: '.env': is not UTF-8 text") as raised:
            load_config(tmp_path / "c.json")
        assert len(raised.value.problems) == problems


def test_an_environment_file_that_is_missing_is_a_matter_of_its_server(tmp_path: Path) -> None:
    servers = {"x": {"command": "x", "envFile": ".env"}, "y": {"command": "y"}}
    (tmp_path / "c.json").write_text(json.dumps({"servers": servers}))
    config = load_config(tmp_path / "c.json")
    why = "servers.x.envFile: '.env': cannot be read: No such file or directory"
    assert (config.missing_env_files, config.warnings) == ({"x": why}, ())
    assert config.env_files == (tmp_path / ".env",), "it may come"


@pytest.mark.parametrize("text", ["[,]", "[1,,]", '{"a":,}', "[1 2]", "{,}", '{"a": "b\n//"}', "NaN", "/* open"])
def test_more_than_comments_and_trailing_commas_is_no_json(text: str) -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        parse_config(text)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b" \n", "is empty"),
        (b"servers:\n  a:\n", "not JSON: Expecting value at line 1, column 1"),
        ('{"servers": {}}'.encode("utf-16"), "not JSON: not UTF-8 text"),
    ],
)
def test_a_file_in_another_format_is_told_in_a_sentence(raw: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(raw)
    assert str(raised.value).startswith(said)


def test_an_error_after_comments_has_its_line_and_column() -> None:
    with pytest.raises(ConfigError, match="line 4, column 10"):
        parse_config('{ // one\n /* two\n three */ "a": [1,\n ], "b": oops}')


def test_a_file_may_begin_with_a_byte_order_mark() -> None:
    assert parse_config(b'\xef\xbb\xbf{"servers": {}}').servers == {}
