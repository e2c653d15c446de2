"""The configuration file: its three shapes, and errors and warnings that name their place."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.config.file import load_config, parse_config
from smcp_computer.config.lint import ConfigError
from smcp_proto.schemas.config import MCPServerStdioConfig, MCPServerStreamableHttpConfig, MCPSSEConfig

STDIO: dict[str, Any] = {"type": "stdio", "server_parameters": {"command": "uvx", "args": ["mcp-server-git"]}}


def parse(document: object) -> Any:
    return parse_config(json.dumps(document))


@pytest.mark.rule("computer.config.json", "answers.config.file.{servers,top-level,mcpServers}")
@pytest.mark.parametrize("document", [{"servers": {"git": STDIO}}, {"git": STDIO}, {"mcpServers": {"git": STDIO}}])
def test_the_three_file_shapes_give_the_same_configuration(document: dict[str, Any]) -> None:
    server = parse(document).servers["git"]
    assert isinstance(server, MCPServerStdioConfig)
    assert (server.name, server.disabled, server.server_parameters.args) == ("git", False, ["mcp-server-git"])


def test_the_flat_form_of_other_hosts_is_read() -> None:
    config = parse(
        {
            "mcpServers": {
                "git": {"command": "uvx", "args": ["x"], "env": {"A": "b"}, "disabled": True},
                "web": {"type": "http", "url": "http://x", "headers": {"H": "1"}},
                "old": {"type": "sse", "url": "http://x"},
            }
        }
    )
    assert isinstance(config.servers["git"], MCPServerStdioConfig)
    assert config.servers["git"].disabled
    assert config.servers["git"].server_parameters.env == {"A": "b"}
    assert isinstance(config.servers["web"], MCPServerStreamableHttpConfig)
    assert config.servers["web"].server_parameters.headers == {"H": "1"}
    assert isinstance(config.servers["old"], MCPSSEConfig)


@pytest.mark.rule("computer.config.by-type")
def test_defaults_are_those_of_the_settled_answers() -> None:
    config = parse(
        {
            "web": {"type": "streamable", "server_parameters": {"url": "http://x"}},
            "old": {"type": "sse", "server_parameters": {"url": "http://x"}},
            "git": STDIO,
        }
    )
    web, old, git = (config.servers[name].server_parameters for name in ("web", "old", "git"))
    assert (web.timeout, web.sse_read_timeout, web.terminate_on_close) == ("PT30S", "PT5M", True)
    assert (old.timeout, old.sse_read_timeout) == (5.0, 300.0)
    assert (git.env, git.encoding, git.encoding_error_handler) == (None, "utf-8", "strict")


@pytest.mark.rule(
    "data-structures.MCPServerConfig.types",
    "computer.challenge.typed",
    "answers.config.{file.name,default.alias}",
)
@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"servers": {"git": {**STDIO, "type": "pipe"}}}, ["servers.git.type: is unknown or missing", "stdio"]),
        ({"servers": {"git": {"server_parameters": {"command": "x"}}}}, ["servers.git.type"]),
        ({"servers": {"git": {"type": "stdio", "args": ["x"]}}}, ["servers.git.command: is missing"]),
        ({"servers": {"web": {"type": "http", "headers": {}}}}, ["servers.web.url: is missing"]),
        ({"git": {"command": "x", "env": {"A": [], "B": {}}}}, ["git.env.A: must be", "git.env.B: must be"]),
        ({"git": {"type": "stdio", "params": []}}, ["git.params: must be"]),
        (
            {"servers": {"git": {"type": "stdio", "server_parameters": {}}}},
            ["servers.git.server_parameters.command: is missing"],
        ),
        ({"servers": {"git": {**STDIO, "disabled": "no"}}}, ["servers.git.disabled"]),
        ({"servers": {"git": {**STDIO, "name": "other"}}}, ["servers.git.name", "'other'"]),
        ({"servers": {"git": {**STDIO, "default_tool_meta": {"alias": "x"}}}}, ["servers.git.default_tool_meta.alias"]),
        ({"servers": {"git": {**STDIO, "tool_meta": {"a": {"tags": "x"}}}}}, ["servers.git.tool_meta.a.tags"]),
        (
            {"servers": {"web": {"type": "streamable", "server_parameters": {"url": "u", "timeout": "30"}}}},
            ["servers.web.server_parameters.timeout"],
        ),
        ({"web": {"url": "http://x", "timeout": 45}}, ["web.timeout: must be an ISO 8601", 'such as "PT45S"']),
        ({"web": {"url": "http://x", "sse_read_timeout": -1}}, ["web.sse_read_timeout: must be an ISO", '"PT30S"']),
        ({"servers": {"git": []}}, ["servers.git: is not an MCP server with a 'command' or a 'url'"]),
        ({"servers": {"git": {}}}, ["servers.git: is not an MCP server with a 'command' or a 'url'"]),
        ({"mcp": {"servers": {"git": {"command": "x"}}}}, ["mcp: is not an MCP", "under 'servers' or 'mcpServers'"]),
        ({"web": {"type": "https", "url": "http://x"}}, ["web.type: "]),
        ({"servers": []}, ["servers"]),
        ({"servers": {}, "inputs": {}}, ["inputs"]),
        ({"servers": {}, "inputs": [{"id": "k", "type": "secret", "description": ""}]}, ["inputs[0].type"]),
        ({"servers": {}, "inputs": [{"type": "promptString", "description": ""}]}, ["inputs[0]", "id"]),
        ({"servers": {}, "inputs": [{"id": "k", "type": "promptString", "description": ""}] * 2}, ["'k'", "twice"]),
        ([], ["object"]),
        ({"command": "npx", "args": ["x"]}, ["has one MCP server without a name", '{"mcpServers": {"NAME": ']),
    ],
)
def test_problems_name_their_place(document: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(document)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.rule("computer.config.json")
def test_a_file_that_is_not_json_says_where(tmp_path: Path) -> None:
    path = tmp_path / "computer.json"
    path.write_text('{"servers": {\n  "git": oops}}')
    with pytest.raises(ConfigError, match=r"computer\.json: not JSON: .* line 2, column 10"):
        load_config(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b'{"servers": %b}' % (b"9" * 5000)])
def test_a_file_that_cannot_be_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "computer.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not JSON"):
        load_config(path)


@pytest.mark.parametrize("depth", [300, 600, 900])
def test_deeply_nested_values_are_an_error_or_a_warning(depth: int) -> None:
    nested = '{"servers": {"x": {"command": "y", "z": ' + "[" * depth + "]" * depth + "}}}"
    try:
        assert len(parse_config(nested).warnings) == 1
    except ConfigError as error:
        assert "nested too deeply" in str(error)  # noqa: PT017 -- which depths are too much is Python's matter


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json: cannot be read: No such file"):
        load_config(tmp_path / "nothing.json")


@pytest.mark.parametrize("line", ["B", "=x", "A B=2"])
def test_a_line_of_an_env_file_that_sets_no_variable_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    file, variables = tmp_path / "computer.json", tmp_path / ".env"
    variables.write_text(f"# comment\nA=1\n{line}\n")
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "true", "env_file": str(variables)}}}))
    with pytest.raises(ConfigError, match=r"mcpServers\.a\.env_file.* line 3 is not like NAME=value"):
        load_config(file)


@pytest.mark.parametrize("env_file", ["a\0b", "\ud800"])
def test_an_env_file_that_no_path_can_name_is_an_error_with_its_place(tmp_path: Path, env_file: str) -> None:
    file = tmp_path / "computer.json"
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "true", "env_file": env_file}}}))
    with pytest.raises(ConfigError, match=r"mcpServers\.a\.env_file: '.*': "):
        load_config(file)


def test_a_script_that_is_no_text_is_an_error_with_its_place() -> None:
    server = {"type": "stdio", "vrl": "\ud800", "server_parameters": {"command": "true"}}
    with pytest.raises(ConfigError, match=r"servers\.a\.vrl: is not text"):
        parse_config(json.dumps({"servers": {"a": server}}))


def test_a_server_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'git' stands twice"):
        parse_config('{"servers": {"git": {}, "git": {}}}')


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"servers": {"git": {**STDIO, "forbiden_tools": []}}}, "servers.git.forbiden_tools: .*'forbidden_tools'?"),
        ({"servers": {"a b": {**STDIO, "forbiddenTools": []}}}, "servers.\"a b\".forbiddenTools: .*'forbidden_tools'?"),
        ({"servers": {"git": {**STDIO, "command": "x"}}}, "servers.git.command: is not a known field$"),
        ({"git": {**STDIO, "tool_meta": {"x": {"auto_aply": True}}}}, "git.tool_meta.x.auto_aply: .*'auto_apply'?"),
        ({"git": {**STDIO, "default_tool_meta": {"tag": []}}}, "git.default_tool_meta.tag: .*'tags'?"),
        ({"git": {**STDIO, "xyzzy": 1}}, "git.xyzzy: is not a known field$"),
        (
            {"git": {"type": "stdio", "server_parameters": {"command": "x", "arg": []}}},
            "git.server_parameters.arg: .*'args'?",
        ),
        ({"mcpServers": {"git": {"command": "x", "ags": []}}}, "mcpServers.git.ags: .*'args'?"),
        ({"git": {"type": "stdio", "params": {"command": "x"}, "args": []}}, "git.args: is not a known field"),
        ({"servers": {"git": STDIO}, "input": []}, "input: did you mean 'inputs'. It is not read"),
        ({"servers": {"git": STDIO}, "mcpServers": {}}, "mcpServers: .*It is not read|mcpServers: is not read"),
        ({"mcpServers": {"git": STDIO}, "servers": {"time": STDIO}}, "mcpServers: .*It is not read|mcpServers: is not"),
        (
            {"git": STDIO, "inputs": [{"id": "k", "type": "promptString", "description": "", "defualt": ""}]},
            r"inputs\[0\].defualt: did you mean 'default'\? ",
        ),
        (
            {
                "git": {"command": "x", "args": ["a", "-${input:toke}"]},
                "inputs": [{"id": "token", "type": "promptString", "description": ""}],
            },
            r"git.args.1: \${input:toke}: did you mean 'token'\? It is not the id of an input",
        ),
        ({}, "names no MCP servers, so none runs"),
        ({"servers": {}}, "names no MCP servers, so none runs"),
    ],
)
def test_an_unknown_field_is_a_warning_with_its_place_and_a_suggestion(document: object, said: str) -> None:
    warnings = parse(document).warnings
    assert len(warnings) == 1
    assert re.search(said, warnings[0])


@pytest.mark.parametrize(
    ("field", "value"),
    [("sandbox", {}), ("user", "a"), ("limits", {"files": 64}), ("environment", ["A"]), ("envFile", "a.env")],
)
def test_a_setting_for_programs_is_a_warning_at_a_server_over_http_but_not_as_a_default(
    field: str, value: object
) -> None:
    document = {"mcpServers": {"a": {"url": "http://127.0.0.1:1/mcp", field: value}, "b": {"command": "true"}}}
    (warning,) = parse_config(json.dumps(document)).warnings
    assert warning.startswith(f"mcpServers.a.{field}: has no effect")
    named = "env_file" if field == "envFile" else field
    document = {"mcpServers": {"a": {"url": "http://127.0.0.1:1/mcp"}}, "defaults": {named: value}}
    assert parse_config(json.dumps(document)).warnings == ()


def test_a_good_file_has_no_warnings() -> None:
    inputs = [{"id": "k", "type": "command", "description": "", "command": "x", "args": {}}]
    web = {"type": "streamable", "server_parameters": {"url": "http://u", "headers": {"H": "${input:k}"}}, "vrl": "."}
    off = {"command": "x", "args": ["${input:unknown}"], "disabled": True}
    assert parse({"$schema": "s", "servers": {"git": STDIO, "web": web}, "inputs": inputs}).warnings == ()
    assert parse({"$schema": "s", "mcpServers": {"git": STDIO, "off": off}}).warnings == ()


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        parse(
            {
                "servers": {
                    "one": {"type": "stdio", "server_parameters": {"comand": "x"}, "disabled": 1},
                    "two": {**STDIO, "name": "other", "vlr": "."},
                    "three": {"type": "pipe"},
                },
                "inputs": [{"id": "k"}, 7],
            }
        )
    assert (len(raised.value.problems), len(raised.value.warnings)) == (6, 2)
    for said in (
        "servers.one.disabled: ",
        "servers.one.server_parameters.command: is missing",
        "servers.one.server_parameters.comand: did you mean 'command'? It is not a known field",
        "servers.two.name: ",
        "servers.two.vlr: did you mean 'vrl'? It is not a known field",
        "servers.three.type: is unknown or missing",
        "inputs[0].type: is unknown or missing",
        "inputs[1]",
    ):
        assert any(each.startswith(said) for each in (*raised.value.problems, *raised.value.warnings))


def test_a_misplaced_field_is_not_suggested_as_its_own_replacement() -> None:
    config = parse({"mcpServers": {"web": {"type": "stdio", "command": "x", "headers": {}}}})
    assert config.warnings == ("mcpServers.web.headers: is not a known field",)


@pytest.mark.parametrize(
    ("written", "problem", "warning"),
    [
        ({"comand": "x"}, "is not an MCP server with a 'command' or a 'url'", ".comand: did you mean 'command'?"),
        ({"type": "htp", "url": "http://x", "headers": {}}, ".type: did you mean 'http'? It is unknown or", None),
        ({"type": "stdoi", "comand": "x"}, ".type: did you mean 'stdio'?", ".comand: did you mean 'command'?"),
        ({**STDIO, "limits": {"cpu": 1}}, ".limits.cpu: did you mean 'cpus'?", None),
    ],
)
def test_a_misspelled_field_or_type_of_a_server_is_suggested(
    written: dict[str, Any], problem: str, warning: str | None
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse({"servers": {"git": written}})
    assert [problem in each for each in raised.value.problems] == [True]
    assert [warning is not None and warning in each for each in raised.value.warnings] == [True] * (warning is not None)


def test_a_misspelled_type_of_an_input_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"inputs\[0\]\.type: did you mean 'pickString'\?"):
        parse({"servers": {"git": STDIO}, "inputs": [{"id": "k", "type": "pickstrng", "description": "d"}]})


@pytest.mark.parametrize("key", ["server", "Servers"])
def test_a_misspelled_top_level_key_is_suggested(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: did you mean 'servers'. It is not an MCP server"):
        parse({key: {"git": STDIO}})


def test_an_unknown_top_level_key_is_a_warning_with_a_hint() -> None:
    config = parse({"mcpServers": {"git": {"command": "x"}}, "globalShortcut": "", "default": {}, "servers_": 1})
    assert sorted(config.warnings) == [
        "default: did you mean 'defaults'? It is not read",
        "globalShortcut: is not read",
        "servers_: did you mean 'servers'? It is not read",
    ]
    assert parse({"git": STDIO, "version": 1}).warnings == ("version: is not read",)


@pytest.mark.parametrize(
    "url",
    ["u", "localhost:8000/mcp", "ftp://host", "http://", "https:///mcp", "http://host:port/mcp", "http://a b"],
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
def test_an_unusable_url_is_an_error_with_its_place(kind: str, url: str) -> None:
    for document, place in (
        ({"servers": {"web": {"type": kind, "server_parameters": {"url": url}}}}, "servers.web.server_parameters.url"),
        ({"mcpServers": {"web": {"type": kind, "url": url}}}, "mcpServers.web.url"),
    ):
        with pytest.raises(ConfigError) as raised:
            parse(document)
        assert raised.value.problems[0].startswith(f"{place}: is not a URL")


@pytest.mark.parametrize(
    ("header", "value", "why"),
    [("A b", "c", "is not a header name"), ("A:", "c", "header"), ("A", "b\nC: d", "one line"), ("A", None, "text")],
)
def test_a_header_that_cannot_be_sent_is_an_error_with_its_place(header: str, value: str | None, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^mcpServers\.web\.headers\.{header}: .*{why}"):
        parse({"mcpServers": {"web": {"url": "http://x", "headers": {header: value}}}})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("sandbox", {"netwrk": True}, "sandbox.netwrk: did you mean 'network'? It is not a known field"),
        ("limits", {"memory": 5}, "limits.memory: did you mean 'memory_mb'? It is not a known field"),
        ("confirm", {"xyzzy": []}, "confirm.xyzzy: is not a known field"),
        ("sandbox", True, "sandbox: must be an object"),
        ("default_tool_meta", "x", "default_tool_meta: must be an object"),
        ("sandbox", {"read": "/tmp"}, "sandbox.read: must be a list"),
        ("environment", "PATH", "environment: must be a list"),
        ("confirm", {"default": "never"}, "confirm.default: must be 'ask', 'allow' or 'deny'"),
        ("limits", {"files": "64"}, "limits.files: must be a whole number"),
        ("cgroup", {"cpus": "1"}, "cgroup.cpus: must be a number"),
        ("cwd", 7, "cwd: must be a string"),
        ("user", 0, "user: must be a string"),
        ("env", {"PORT": 4711, "ON": True}, "env.ON: must be a string"),
        ("encoding", "klingon", "encoding: is not a text encoding, such as utf-8"),
        ("encoding", "base64", "encoding: is not a text encoding, such as utf-8"),
        ("env", ["A=b"], "env: must be an object"),
    ],
)
def test_a_wrong_value_is_told_in_words_of_the_file(field: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse({"mcpServers": {"a": {"command": "x", field: value}}})
    assert raised.value.problems == (f"mcpServers.a.{said}",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sandbox", {"network": "no"}),
        ("disabled", "no"),
        ("replace_content", "no"),
        ("tool_meta", {"x": {"auto_apply": "no"}}),
    ],
)
def test_a_text_is_no_boolean(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^mcpServers\.a\.{field}[a-z_.]*: must be true or false$"):
        parse({"mcpServers": {"a": {"command": "x", field: value}}})


def test_mistakes_of_this_host_and_of_the_protocol_are_told_together() -> None:
    with pytest.raises(ConfigError) as raised:
        parse({"mcpServers": {"a": {"command": 7, "sandbox": True}}})
    assert [each.removeprefix("mcpServers.a.") for each in raised.value.problems] == [
        "sandbox: must be an object",
        "command: must be a string",
    ]


def test_a_field_of_another_kind_of_server_is_not_read_whatever_it_holds() -> None:
    server = {"type": "stdio", "server_parameters": {"command": "x", "url": 5, "headers": 5}}
    assert len(parse({"servers": {"a": server}}).warnings) == 2


@pytest.mark.parametrize("url", ["http://host/mcp", "HTTPS://host:8443", "http://[::1]:8000/mcp", "${env:URL}/mcp"])
def test_http_urls_and_placeholders_are_no_warning(url: str) -> None:
    assert not parse({"web": {"type": "streamable", "server_parameters": {"url": url}}}).warnings
