"""The configuration file: three shapes are read, and what is wrong is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.config.errors import ConfigError
from smcp_computer.config.file import load_config, parse_config
from smcp_proto.schemas.config import MCPServerStdioConfig, MCPServerStreamableHttpConfig, MCPSSEConfig

STDIO: dict[str, Any] = {"type": "stdio", "server_parameters": {"command": "uvx", "args": ["mcp-server-git"]}}


def parse(document: object) -> Any:
    return parse_config(json.dumps(document))


@pytest.mark.parametrize("document", [{"servers": {"git": STDIO}}, {"git": STDIO}, {"mcpServers": {"git": STDIO}}])
def test_the_three_shapes_say_the_same(document: dict[str, Any]) -> None:
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


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"servers": {"git": {**STDIO, "type": "pipe"}}}, ["'git'", "unknown or missing type", "stdio"]),
        ({"servers": {"git": {"server_parameters": {"command": "x"}}}}, ["'git'", "type"]),
        ({"servers": {"git": {"type": "stdio"}}}, ["'git'", "server_parameters", "missing"]),
        ({"servers": {"git": {"type": "stdio", "server_parameters": {}}}}, ["'git'", "command", "missing"]),
        ({"servers": {"git": {**STDIO, "disabled": "no"}}}, ["'git'", "disabled"]),
        ({"servers": {"git": {**STDIO, "name": "other"}}}, ["'git'", "name", "'other'"]),
        ({"servers": {"git": {**STDIO, "default_tool_meta": {"alias": "x"}}}}, ["'git'", "default_tool_meta.alias"]),
        ({"servers": {"git": {**STDIO, "tool_meta": {"a": {"tags": "x"}}}}}, ["'git'", "tool_meta.a.tags"]),
        ({"servers": {"web": {"type": "streamable", "server_parameters": {"url": "u", "timeout": "30"}}}}, ["'web'"]),
        ({"servers": {"git": []}}, ["'git'", "object"]),
        ({"servers": []}, ["servers"]),
        ({"servers": {}, "inputs": {}}, ["inputs"]),
        ({"servers": {}, "inputs": [{"id": "k", "type": "secret", "description": ""}]}, ["'k'", "type"]),
        ({"servers": {}, "inputs": [{"type": "promptString", "description": ""}]}, ["inputs[0]", "id"]),
        ({"servers": {}, "inputs": [{"id": "k", "type": "promptString", "description": ""}] * 2}, ["'k'", "twice"]),
        ([], ["object"]),
    ],
)
def test_what_is_wrong_is_named(document: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(document)
    for word in words:
        assert word in str(raised.value)


def test_a_file_that_is_not_json_says_where(tmp_path: Path) -> None:
    path = tmp_path / "computer.json"
    path.write_text('{"servers": {\n  "git": oops}}')
    with pytest.raises(ConfigError, match=r"computer\.json: not JSON: .* line 2, column 10"):
        load_config(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_cannot_be_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "computer.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not JSON"):
        load_config(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json: cannot be read: No such file"):
        load_config(tmp_path / "nothing.json")


def test_a_server_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'git' stands twice"):
        parse_config('{"servers": {"git": {}, "git": {}}}')
