"""Files of other hosts and of MCP's registry become a configuration; and the JSON Schema of a configuration."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest

from smcp_computer.config.file import imported, load_config, parse_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.other_mcp_hosts import configuration_of_server_json
from smcp_computer.config_commands import write_new

SCHEMA: Final = jsonschema_rs.validator_for(
    json.loads((files("smcp_computer") / "config" / "schema.json").read_text(encoding="utf-8"))
)
PROGRAM = {"type": "stdio", "server_parameters": {"command": "x"}}


def entry(**parts: Any) -> dict[str, Any]:
    return configuration_of_server_json(
        {"name": "io.github.example/weather", "description": "", "version": "1.0.0", **parts}
    )


def package(type_: str, identifier: str, **more: Any) -> dict[str, Any]:
    made = entry(packages=[{"registryType": type_, "identifier": identifier, "transport": {"type": "stdio"}, **more}])
    parameters: dict[str, Any] = made["servers"]["weather"]["server_parameters"]
    return parameters


def test_a_file_of_another_host_is_imported_in_our_structure(tmp_path: Path) -> None:
    written = {
        "inputs": [{"type": "pickString", "id": "k", "options": [{"label": "One", "value": "1"}]}],
        "servers": {
            "a": {"command": "x", "args": ["${workspaceFolder}"], "envFile": ".env", "alwaysAllow": ["t"], "icon": "i"},
            "c": {"command": "x", "disabledTools": ["t"], "enabled": False},
            "b": {"type": "http", "url": "https://example.org/${input:k}"},
        },
        "telemetry": False,
    }
    (tmp_path / "mcp.json").write_text(f"// mine\n{json.dumps(written)}")
    document, config = imported(tmp_path / "mcp.json")
    assert document == {
        "servers": {
            "a": {
                "type": "stdio",
                "server_parameters": {"command": "x", "args": [str(tmp_path)]},
                "env_file": str(tmp_path / ".env"),
                "tool_meta": {"t": {"auto_apply": True}},
            },
            "b": {"type": "streamable", "server_parameters": {"url": "https://example.org/${input:k}"}},
            "c": {**PROGRAM, "forbidden_tools": ["t"], "disabled": True},
        },
        "inputs": [{"description": "k (1: One)", "type": "pickString", "id": "k", "options": ["1"]}],
    }
    assert sorted(config.warnings) == ["servers.a.icon: is not a known field", "telemetry: is not read"]
    assert parse_config(json.dumps(document)).warnings == ()


@pytest.mark.parametrize(
    ("type_", "identifier", "more", "command"),
    [
        ("npm", "@example/weather", {"version": "1.2.3"}, "npx -y @example/weather@1.2.3"),
        ("npm", "weather", {"runtimeHint": "bunx"}, "bunx weather"),
        ("pypi", "weather", {"version": "1.0", "runtimeHint": "uvx"}, "uvx weather@1.0"),
        ("oci", "example.org/example/weather:1", {"version": "2"}, "docker run -i --rm example.org/example/weather:1"),
        ("oci", "example.org:5000/weather", {"version": "2"}, "docker run -i --rm example.org:5000/weather:2"),
        (
            "oci",
            "weather",
            {
                "environmentVariables": [{"name": "A", "value": "1"}],
                "packageArguments": [{"type": "positional", "value": "b"}],
            },
            "docker run -i --rm -e A weather b",
        ),
    ],
)
def test_a_package_of_the_registry_is_run_by_what_fetches_it(
    type_: str, identifier: str, more: dict[str, Any], command: str
) -> None:
    parameters = package(type_, identifier, **more)
    assert " ".join([parameters["command"], *parameters["args"]]) == command


def test_what_a_user_has_to_say_becomes_an_input() -> None:
    made = entry(
        packages=[
            {"registryType": "mcpb", "identifier": "https://example.org/weather.mcpb"},
            {
                "registryType": "npm",
                "identifier": "weather",
                "runtimeArguments": [
                    {
                        "type": "named",
                        "name": "--node-options",
                        "value": "--cpus={n} {other} {m}",
                        "variables": {"m": {"value": "{n}"}, "n": {"default": "2"}},
                    }
                ],
                "packageArguments": [
                    {"type": "named", "name": "--units", "isRequired": True, "choices": ["c", "f"], "default": "c"},
                    {"type": "positional", "valueHint": "city", "isRequired": True},
                    {"type": "positional", "valueHint": "left-out"},
                ],
                "environmentVariables": [
                    {"name": "API_KEY", "description": "The key", "isRequired": True, "isSecret": True},
                    {"name": "LEFT_OUT"},
                ],
            },
        ]
    )
    assert made["servers"]["weather"]["server_parameters"] == {
        "command": "npx",
        "args": [
            "-y", "--node-options", "--cpus=${input:weather-n} {other} {n}", "weather",
            "--units", "${input:weather-units}", "${input:weather-city}",
        ],
        "env": {"API_KEY": "${input:weather-API_KEY}"},
    }  # fmt: skip
    assert {each["id"]: each for each in made["inputs"]} == {
        "weather-API_KEY": {
            "id": "weather-API_KEY", "description": "The key", "type": "promptString", "password": True,
        },
        "weather-n": {"id": "weather-n", "description": "n", "type": "promptString", "default": "2"},
        "weather-units": {
            "id": "weather-units", "description": "--units", "type": "pickString", "options": ["c", "f"],
            "default": "c",
        },
        "weather-city": {"id": "weather-city", "description": "city", "type": "promptString"},
    }  # fmt: skip
    assert parse_config(json.dumps(made)).warnings == ()


def test_a_remote_server_of_the_registry_is_reached_where_no_package_runs_here() -> None:
    made = entry(
        packages=[
            {"registryType": "npm", "identifier": "x", "transport": {"type": "streamable-http", "url": "http://l"}}
        ],
        remotes=[
            {
                "type": "streamable-http",
                "url": "https://{tenant}.example.org/mcp",
                "variables": {"tenant": {"isRequired": True}},
                "headers": [
                    {
                        "name": "Authorization",
                        "value": "Bearer {token}",
                        "variables": {"token": {"isSecret": True}},
                    }
                ],
            }
        ],
    )
    assert made["servers"]["weather"] == {
        "type": "streamable",
        "server_parameters": {
            "url": "https://${input:weather-tenant}.example.org/mcp",
            "headers": {"Authorization": "Bearer ${input:weather-token}"},
        },
    }


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"name": "a/b", "packages": []}, "packages: none runs here"),
        ({"packages": []}, "name: is missing"),
        ({"name": "a/b", "packages": [{"registryType": "npm"}]}, "packages.0.identifier: is missing"),
    ],
)
def test_an_entry_of_the_registry_that_cannot_be_used_is_an_error(document: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        configuration_of_server_json(document)
    with pytest.raises(ConfigError, match="smcp-computer import"):
        parse_config(json.dumps(document))


def test_an_import_is_written_for_its_user_alone_and_replaces_no_file(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    write_new(file, {"servers": {"a": PROGRAM}})
    assert file.stat().st_mode & 0o777 == 0o600
    assert set(load_config(file).servers) == {"a"}
    before = file.read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        write_new(file, {"servers": {"b": PROGRAM}})
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


GOOD: list[dict[str, Any]] = [
    {
        "$schema": "./s.json",
        "servers": {"a": {**PROGRAM, "forbidden_tools": ["x"], "tool_meta": {"t": {"tags": ["x"]}}}},
    },
    {"servers": {"a": {"command": "x", "env": {"PORT": 1, "A": None}, "envFile": ".env"}}},
    {"mcpServers": {"a": {"url": "http://x"}, "b": {"url": "http://x", "type": "sse"}}},
    {"a": {"type": "http", "params": {"url": "http://x"}}, "b": {"type": "stdio", "params": {"command": "x"}}},
    {"servers": {"a": {"command": "x", "env_file": ".env"}}, "defaults": {"env_file": "x"}},
    {"servers": {}, "inputs": [{"type": "pickString", "id": "k", "options": ["a", {"label": "A", "value": "a"}]}]},
]
BAD: list[dict[str, Any]] = [
    {"servers": {"a": {"type": "stdio", "server_parameters": {}}}},
    {"servers": {"a": {**PROGRAM, "forbiden_tools": []}}},
    {"servers": {"a": {"type": "pipe", "command": "x"}}},
    {"mcpServers": {"a": {"command": 7}}},
    {"a": {"type": "http", "params": {}}},
    {"servers": {"a": {"url": "http://x", "timeout": 60000, "type": "http"}}},
    {"servers": {}, "inputs": [{"type": "secret", "id": "k", "description": ""}]},
    {"servers": {}, "inputs": {}},
    {"servers": {}, "defaults": {"x": 1}},
]


def mistakes_of(document: dict[str, Any]) -> set[str]:
    try:
        found = parse_config(json.dumps(document)).warnings
    except ConfigError as error:
        found = error.problems
    return set(found) - {"names no MCP servers, so none runs"}


@pytest.mark.parametrize("document", GOOD)
def test_the_schema_takes_what_is_read_without_a_mistake(document: dict[str, Any]) -> None:
    assert not mistakes_of(document)
    SCHEMA.validate(document)


@pytest.mark.parametrize("document", BAD)
def test_the_schema_refuses_what_is_an_error_or_a_mistake(document: dict[str, Any]) -> None:
    assert mistakes_of(document)
    assert not SCHEMA.is_valid(document)
