"""Agents see the configuration without its secrets."""

import json
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.config.file import parse_config, read_config
from smcp_computer.redaction import literal_secrets, shown

DOCUMENT: dict[str, Any] = {
    "servers": {
        "git": {
            "type": "stdio",
            "forbidden_tools": ["push"],
            "tool_meta": {"log": {"tags": ["vcs"]}},
            "later_field": 7,
            "server_parameters": {
                "command": "uvx",
                "args": ["mcp-server-git", "--key", "${input:k}"],
                "env": {"TOKEN": "s3cret", "KEY": "${input:k}", "BOTH": "${env:A}${env:B}", "MIX": "Bearer ${env:A}"},
            },
        },
        "web": {
            "type": "streamable",
            "server_parameters": {"url": "http://x", "headers": {"Authorization": "Bearer s3cret", "N": 5}},
        },
    },
    "inputs": [
        {"id": "k", "type": "promptString", "description": "key", "password": True, "default": "s3cret"},
        {"id": "p", "type": "promptString", "description": "plain", "default": "shown"},
    ],
}


def reply() -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(shown(parse_config(json.dumps(DOCUMENT))).model_dump_json(exclude_unset=True))
    return answer


@pytest.mark.rule("answers.config.shown.headers")
def test_no_secret_is_shown() -> None:
    assert "s3cret" not in json.dumps(reply())


@pytest.mark.rule("events.get_config.whole", "answers.config.shown.{structure,placeholders,env,headers}")
def test_the_structure_and_the_placeholders_are_kept() -> None:
    git = reply()["servers"]["git"]
    assert git["server_parameters"]["env"] == {
        "TOKEN": "<redacted>",
        "KEY": "${input:k}",
        "BOTH": "${env:A}${env:B}",
        "MIX": "<redacted>",
    }
    assert git["server_parameters"]["args"] == ["mcp-server-git", "--key", "${input:k}"]
    assert git["forbidden_tools"] == ["push"]
    assert git["tool_meta"]["log"]["tags"] == ["vcs"]
    assert git["later_field"] == 7
    assert (git["name"], git["disabled"]) == ("git", False)
    assert reply()["servers"]["web"]["server_parameters"]["headers"] == {
        "Authorization": "<redacted>",
        "N": "<redacted>",
    }


def test_literals_in_arguments_and_addresses_that_look_secret_are_not_shown() -> None:
    key, digest = "ghp_" + "a" * 36, "sha256:" + "0" * 64
    document = {
        "a": {
            "command": "uvx",
            "args": [
                "git",
                "--token",
                "abc",
                "--api-key=abc",
                key,
                f"https://x:{key}@host/r?region=eu",
                "sha256:" + "0" * 64,
            ],
            "cwd": f"/tmp/{key}",
        },
        "b": {"url": "https://me:abc@host/mcp?region=eu&key=${input:k}&t=a%20b#top"},
        "c": {"url": "https://host/mcp/aB3dE5gH7jK9mN1pQ3sT5vW7/sse"},
    }
    config = parse_config(json.dumps({"mcpServers": document}))
    servers = shown(config).model_dump()["servers"]
    a, b, c = (servers[name]["server_parameters"] for name in "abc")
    r = "<redacted>"
    hidden = ["--token", r, f"--api-key={r}", r, f"https://{r}@host/r?region={r}"]
    assert a["args"] == ["git", *hidden, digest]
    assert (a["command"], a["cwd"]) == ("uvx", f"/tmp/{r}")
    assert b["url"] == f"https://{r}@host/mcp?region={r}&key=${{input:k}}&t={r}#top"
    assert c["url"] == f"https://host/mcp/{r}/sse"


def test_headers_as_arguments_scripts_and_arguments_of_inputs_are_shown_without_their_secrets() -> None:
    mapper = {"ret_object_mapper": {"a": "password=s3cret"}}
    document = {
        "servers": {
            "a": {
                "type": "stdio",
                "vrl": '.token = "s3cret"\n.header = "Authorization: Basic s3cret"\n.kind = .token_kind',
                "tool_meta": {"log": {"tags": ["api-key: s3cret"]}, "map": mapper},
                "default_tool_meta": {"tags": ["secret=s3cret"]},
                "forbidden_tools": ["listAllOfTheBuckets_in_S3"],
                "server_parameters": {
                    "command": "npx",
                    "args": [
                        "--header",
                        "Authorization: Bearer s3cret-1",
                        "X-API-Key: s3cret-2",
                        '{"token": "s3cret-3"}',
                        "Authorization: Bearer ${input:k}",
                        "--authorization",
                        "s3cret",
                    ],
                },
            }
        },
        "inputs": [
            {
                "id": "k",
                "type": "command",
                "description": "k",
                "command": "vault",
                "args": {"token": "s3cret", "header": "X-API-Key: s3cret", "path": "kv/x", "secret": "${env:X}"},
            }
        ],
    }
    config = parse_config(json.dumps(document))
    answer = shown(config).model_dump()
    assert "s3cret" not in json.dumps(answer)
    server, r = answer["servers"]["a"], "<redacted>"
    assert server["vrl"] == f'.token = "{r}"\n.header = "Authorization: Basic {r}"\n.kind = .token_kind'
    assert server["forbidden_tools"] == ["listAllOfTheBuckets_in_S3"]
    assert server["server_parameters"]["args"] == [
        "--header",
        f"Authorization: Bearer {r}",
        f"X-API-Key: {r}",
        f'{{"token": "{r}"}}',
        "Authorization: Bearer ${input:k}",
        "--authorization",
        r,
    ]
    assert answer["inputs"][0]["args"] == {
        "token": r,
        "header": f"X-API-Key: {r}",
        "path": "kv/x",
        "secret": "${env:X}",
    }
    found = [warning.split(": ")[0] for warning in literal_secrets(config)]
    assert [place for place in found if "args" in place] == [
        *(f"servers.a.server_parameters.args.{index}" for index in (1, 2, 3, 6)),
        "inputs[0].args.token",
        "inputs[0].args.header",
    ]
    assert "servers.a.vrl" in found


def args_shown(*args: str) -> list[str]:
    config = parse_config(json.dumps({"mcpServers": {"a": {"command": "x", "args": args}}}))
    found: list[str] = shown(config).model_dump()["servers"]["a"]["server_parameters"]["args"]
    return found


@pytest.mark.parametrize(
    ("args", "hidden"),
    [
        (["--header", "X-Space: s3cret and more"], ["--header", "X-Space: <redacted>"]),
        (["-H", "X-Space:s3cret"], ["-H", "X-Space:<redacted>"]),
        (["--header=X-Space: s3cret"], ["--header=X-Space: <redacted>"]),
        (["run", "-e", "SPACE=s3cret", "image"], ["run", "-e", "SPACE=<redacted>", "image"]),
        (["--env", "space=s3cret"], ["--env", "space=<redacted>"]),
        (["SPACE=s3cret", "prog"], ["SPACE=<redacted>", "prog"]),
        (["https://h/mcp?space=s3cret#s=s3cret"], ["https://h/mcp?space=<redacted>#s=<redacted>"]),
        (["https://h/u/8f14e45f-ceea-467f-9f0a-aa0c0f1f2e3d/mcp"], ["https://h/u/<redacted>/mcp"]),
        (["--passphrase", "s3cret"], ["--passphrase", "<redacted>"]),
    ],
)
def test_arguments_that_are_headers_variables_or_addresses_are_secret_whatever_their_names(
    args: list[str], hidden: list[str]
) -> None:
    assert args_shown(*args) == hidden


USEFUL = [
    ["-y", "@modelcontextprotocol/server-filesystem@2025.11.25", "/srv/documents", "--read-only"],
    ["run", "--rm", "-i", "-e", "LOG_LEVEL=debug", "-e", "TOKEN", "-e", "KEY=${input:key}", "org/image:1.2.3"],
    ["mcp-remote", "https://mcp-12345.server.example.com:8443/v1/mcp", "--header", "Authorization:Bearer ${input:k}"],
    ["-m", "my_server", "--port", "8080", "--timeout=30", "--name", "a long name of 2 words"],
    ["--header", "Accept: application/json, text/event-stream", "--header", "Cache-Control: no-cache"],
]


@pytest.mark.parametrize("args", USEFUL, ids=lambda args: args[1])
def test_arguments_that_tell_what_a_server_does_are_shown(args: list[str]) -> None:
    assert args_shown(*args) == args


@pytest.mark.rule("data-structures.MCPServerPromptStringInput.password.meaning")
def test_inputs_are_listed_without_the_default_of_a_password() -> None:
    assert [entry["default"] for entry in reply()["inputs"]] == ["<redacted>", "shown"]


def test_a_configuration_without_inputs_has_no_inputs_key() -> None:
    assert shown(parse_config('{"servers": {}}')).model_dump(exclude_unset=True) == {"servers": {}}


@pytest.mark.rule("answers.config.validate")
def test_literal_secrets_are_found_and_not_quoted() -> None:
    document = {
        "a": {"type": "stdio", "server_parameters": {"command": "x", "args": ["--api-key", "abc", "--token=abc"]}},
        "b": {"type": "sse", "server_parameters": {"url": "http://me:pw@host/?token=abc"}},
        "c": {"type": "sse", "server_parameters": {"url": "http://host/", "headers": {"Authorization": "abc"}}},
        "d": {"type": "stdio", "server_parameters": {"command": "x", "args": ["--api-key", "${input:k}", "ghp", "-v"]}},
        "e": {"type": "stdio", "server_parameters": {"command": "x", "args": ["ghp_" + "a" * 36]}},
    }
    found = literal_secrets(parse_config(json.dumps(document)))
    assert [warning.split(": ")[0] for warning in found] == [
        "a.server_parameters.args.1",
        "a.server_parameters.args.2",
        "b.server_parameters.url",
        "c.server_parameters.headers.Authorization",
        "e.server_parameters.args.0",
    ]
    assert "abc" not in str(found)


@pytest.mark.parametrize(
    ("env", "secret"),
    [
        ({"GITHUB_TOKEN": "hunter2"}, True),
        ({"NOTHING": "ghp_" + "a" * 36}, True),
        ({"AUTHORIZATION": "Bearer abc"}, True),
        ({"AUTHORIZATION": "Bearer ${input:k}"}, False),
        ({"API_KEY": "${env:KEY}"}, False),
        ({"API_KEY": ""}, False),
        ({"MAX_TOKENS": "4096", "LOG_LEVEL": "debug", "CITY": "Paris"}, False),
    ],
)
def test_a_literal_secret_of_a_variable_is_told_with_the_way_into_an_input(env: dict[str, str], secret: bool) -> None:
    found = literal_secrets(parse_config(json.dumps({"mcpServers": {"Git Hub": {"command": "x", "env": env}}})))
    assert len(found) == secret
    for warning in found:
        assert warning.startswith(f'mcpServers."Git Hub".env.{next(iter(env))}: looks like a literal secret: ')
        assert "smcp-computer secrets set ID" in warning


def test_variables_of_an_env_file_are_no_literals_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("API_KEY=hunter2")
    file = tmp_path / "computer.json"
    server = {"command": "x", "env": {"TOKEN": "hunter2"}, "envFile": ".env"}
    file.write_text(json.dumps({"mcpServers": {"a": server}}))
    (warning,) = literal_secrets(read_config(file))
    assert warning.startswith("mcpServers.a.env.TOKEN: ")
