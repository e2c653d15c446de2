"""Values of placeholders; the error for a missing one names the server and the input."""

import asyncio
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.config.file import ComputerConfig, parse_config
from smcp_computer.config.inputs import InputResolver, variable_of
from smcp_computer.config.lint import CannotRun, ConfigError
from smcp_computer.config.secret_store import SecretStore
from smcp_computer.redaction import literal_secrets
from smcp_computer.terminal import Terminal
from smcp_proto.schemas.config import MCPServerConfig, MCPServerStdioConfig
from smcp_testing.terminal_user import terminal_user


async def resolve(parameters: dict[str, Any], inputs: list[dict[str, Any]], environ: dict[str, str]) -> dict[str, Any]:
    servers = {"git": {"type": "stdio", "server_parameters": {"command": "x", **parameters}}}
    config = parse_config(json.dumps({"servers": servers, "inputs": inputs}))
    resolved = await InputResolver(config.inputs, environ).resolve(config.servers["git"])
    return resolved.server_parameters.model_dump()


def prompt(**more: Any) -> dict[str, Any]:
    return {"id": "api key", "type": "promptString", "description": "", **more}


def pick(**more: Any) -> dict[str, Any]:
    return {"id": "r", "type": "pickString", "description": "", "options": ["eu", "us"], **more}


@pytest.mark.rule("answers.config.input.variable")
def test_the_variable_of_an_input_is_upper_case_with_underscores() -> None:
    assert variable_of("api-key.2 ä") == "SMCP_INPUT_API_KEY_2__"


@pytest.mark.rule(
    "data-structures.{MCPServerInputBase.placeholder,MCPServerPromptStringInput.default.meaning}",
    "answers.config.input.{variable,default}",
)
async def test_the_variable_of_an_input_wins_over_its_default() -> None:
    inputs = [prompt(default="d")]
    reference = {"env": {"K": "Bearer ${input:api key}"}}
    given = {"SMCP_INPUT_API_KEY": "s3"}
    assert (await resolve(reference, inputs, given))["env"] == {"K": "Bearer s3"}
    assert (await resolve(reference, inputs, {}))["env"] == {"K": "Bearer d"}


async def test_the_values_of_passed_variables_are_secret_unless_they_are_well_known() -> None:
    config = parse_config(json.dumps({"mcpServers": {"git": {"command": "x"}}}))
    inputs = InputResolver({}, {"SPACE": "canary", "HOME": "/srv/anna", "OTHER": "shown"})
    await inputs.resolve(config.servers["git"], ["SPACE", "HOME", "MISSING"])
    assert inputs.redactor.redact("canary /srv/anna shown") == "<redacted> /srv/anna shown"


async def test_a_literal_secret_in_the_command_of_an_input_is_warned_of_and_known_when_it_fails() -> None:
    program = {"id": "k", "type": "command", "description": "", "command": "/no/such --token=c4nary-77"}
    document = {"mcpServers": {"git": {"command": "x", "env": {"K": "${input:k}"}}}, "inputs": [program]}
    config = parse_config(json.dumps(document))
    inputs = InputResolver(config.inputs, {})
    with pytest.raises(ConfigError, match="c4nary-77") as failed:
        await inputs.resolve(config.servers["git"])
    assert "its program '/no/such --token=<redacted>'" in inputs.redactor.redact(str(failed.value))
    (warning,) = literal_secrets(config)
    assert warning.startswith("inputs[0].command: looks like a literal secret")


@pytest.mark.rule("answers.config.env")
async def test_placeholders_are_replaced_once_in_any_parameter() -> None:
    parameters = {"command": "${env:PROG}", "args": ["a", "${env:A}${env:A}"], "cwd": "/x/${env:A}"}
    resolved = await resolve(parameters, [], {"PROG": "run", "A": "${env:PROG}"})
    assert resolved["command"] == "run"
    assert resolved["args"] == ["a", "${env:PROG}${env:PROG}"]
    assert resolved["cwd"] == "/x/${env:PROG}"


@pytest.mark.rule("data-structures.MCPServerPickStringInput.options.meaning", "answers.config.input.missing")
@pytest.mark.parametrize(
    ("reference", "inputs", "environ", "words"),
    [
        ("${input:api key}", [prompt()], {}, ["'api key'", "SMCP_INPUT_API_KEY"]),
        ("${input:nobody}", [], {}, ["${input:nobody}", "not the id of an input"]),
        ("${env:NOT_SET}", [], {}, ["${env:NOT_SET}", "not set"]),
        ("${input:r}", [pick()], {"SMCP_INPUT_R": "asia"}, ["'r'", "SMCP_INPUT_R", "'eu', 'us'"]),
        ("${input:r}", [pick(default="asia")], {}, ["'r'", "default"]),
    ],
)
async def test_the_error_for_a_missing_value_names_field_and_input(
    reference: str, inputs: list[dict[str, Any]], environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(CannotRun) as raised:
        await resolve({"args": [reference]}, inputs, environ)
    assert "server_parameters.args.0" in str(raised.value)
    for word in words:
        assert word in str(raised.value)
    assert "asia" not in str(raised.value)


@pytest.mark.rule("data-structures.MCPServerPickStringInput.{options.meaning,default.meaning}")
async def test_one_of_the_options_is_taken() -> None:
    assert (await resolve({"args": ["${input:r}"]}, [pick()], {"SMCP_INPUT_R": "us"}))["args"] == ["us"]
    assert (await resolve({"args": ["${input:r}"]}, [pick(default="eu")], {}))["args"] == ["eu"]


@pytest.mark.rule("data-structures.MCPServerCommandInput.meaning", "answers.config.command.{no-shell,args,output}")
async def test_the_value_of_a_command_input_is_the_output_of_its_program(tmp_path: Any) -> None:
    program = tmp_path / "print-arguments"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint(' ', *sys.argv[1:], ' ')\n")
    program.chmod(0o755)
    definition = {
        "id": "c",
        "type": "command",
        "description": "",
        "command": str(program),
        "args": {"user": "a b", "note": "$HOME; `id`"},
    }
    resolved = await resolve({"args": ["${input:c}"]}, [definition], {})
    assert resolved["args"] == ["--user a b --note $HOME; `id`"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "not UTF-8 text"),
    ],
)
async def test_an_input_whose_program_fails_has_no_value(tmp_path: Any, body: str, why: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\n{body}\n")
    program.chmod(0o755)
    definition = {"id": "c", "type": "command", "description": "", "command": str(program)}
    with pytest.raises(ConfigError, match=why):
        await resolve({"args": ["${input:c}"]}, [definition], {})


def test_a_program_that_hangs_is_stopped_with_its_children_and_its_pipe_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_computer.config.inputs.COMMAND_TIMEOUT_S", 0.3)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nsleep 60 & sleep 60\n")
    program.chmod(0o755)
    definition = {"id": "c", "type": "command", "description": "", "command": str(program)}
    loop = asyncio.new_event_loop()
    with pytest.raises(ConfigError, match="did not end within"):
        loop.run_until_complete(resolve({"args": ["${input:c}"]}, [definition], {"PATH": "/usr/bin:/bin"}))
    loop.close()
    gc.collect()  # a pipe that nobody closed warns, and fails the test


async def test_a_program_that_does_not_exist_is_named() -> None:
    definition = {"id": "c", "type": "command", "description": "", "command": "no-such-program"}
    with pytest.raises(ConfigError, match="'no-such-program': No such file"):
        await resolve({"args": ["${input:c}"]}, [definition], {})


async def test_all_missing_values_are_reported_at_once_and_no_program_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = {"id": "c", "type": "command", "description": "", "command": "touch", "args": {"reference": str(ran)}}
    parameters = {"args": ["${input:c}", "${env:A}"], "env": {"K": "Bearer ${input:api key}"}}
    with pytest.raises(CannotRun) as raised:
        await resolve(parameters, [program, prompt()], {})
    assert str(raised.value) == (
        "server_parameters.args.1: ${env:A}: the environment variable is not set; "
        "server_parameters.env.K: input 'api key' has no value: "
        "set SMCP_INPUT_API_KEY, or keep one with smcp-computer secrets set 'api key'"
    )
    assert not ran.exists()


async def test_a_program_runs_once_for_all_servers_and_again_when_its_definition_changed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho >> $0.ran; echo $2\n")
    program.chmod(0o755)

    def definition(value: str) -> dict[str, Any]:
        return {"id": "c", "type": "command", "description": "", "command": str(program), "args": {"v": value}}

    servers = {name: {"command": "x", "args": ["${input:c}"]} for name in ("a", "b", "c")}
    config = parse_config(json.dumps({"mcpServers": servers, "inputs": [definition("one")]}))
    resolver = InputResolver(config.inputs, {"PATH": os.environ["PATH"]})
    resolved = await asyncio.gather(*(resolver.resolve(server) for server in config.servers.values()))
    assert [arguments(server) for server in resolved] == [["one"]] * 3
    resolver.definitions = parse_config(json.dumps({"mcpServers": servers, "inputs": [definition("two")]})).inputs
    assert arguments(await resolver.resolve(config.servers["a"])) == ["two"]
    assert (tmp_path / "program.ran").read_text() == "\n\n"


def arguments(server: MCPServerConfig) -> list[str]:
    assert isinstance(server, MCPServerStdioConfig)
    return server.server_parameters.args


@pytest.mark.rule("answers.config.input.variable")
async def test_a_kept_value_wins_over_the_environment_and_that_over_the_default(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    store.put("api key", "kept")
    config = configuration([prompt(default="d")])
    git = config.servers["git"]
    resolver = InputResolver(config.inputs, {"SMCP_INPUT_API_KEY": "of this run"}, store=store)
    assert arguments(await resolver.resolve(git)) == ["kept"]
    store.put("api key", "newer")
    assert arguments(await resolver.resolve(git)) == ["newer"]
    store.remove("api key")
    assert arguments(await resolver.resolve(git)) == ["of this run"]
    assert arguments(await InputResolver(config.inputs, {}, store=store).resolve(git)) == ["d"]


async def test_a_store_that_cannot_be_read_keeps_a_server_from_starting(tmp_path: Path) -> None:
    SecretStore(tmp_path).put("api key", "kept")
    (tmp_path / "secrets.key").unlink()
    config = configuration([prompt()])
    with pytest.raises(CannotRun, match=r"^[^']*secrets: cannot be decrypted: .*secrets\.key does not exist"):
        await InputResolver(config.inputs, {}, store=SecretStore(tmp_path)).resolve(config.servers["git"])


async def test_the_user_is_asked_once_for_a_password_and_it_is_kept_if_wanted(tmp_path: Path) -> None:
    config = configuration([prompt(password=True, description="Key of the API")])
    git = config.servers["git"]
    store = SecretStore(tmp_path)
    async with terminal_user() as user:
        resolver = InputResolver(config.inputs, {}, store=store, terminal=Terminal(user.device))
        both = asyncio.gather(resolver.resolve(git), resolver.resolve(git))
        await user.sees("The MCP server 'git' needs 'api key': Key of the API\nIts value (not shown): ")
        user.types("s3cret\n")
        await user.sees("Keep 'api key', encrypted, for the next start?\n[y/N] ")
        assert store.read() == {}
        user.types("y\n")
        assert [arguments(server) for server in await asyncio.wait_for(both, 30)] == [["s3cret"]] * 2
        assert user.shown.count("Its value") == 1
        assert "s3cret" not in user.shown
    assert store.read() == {"api key": "s3cret"}
    assert arguments(await InputResolver(config.inputs, {}, store=store).resolve(git)) == ["s3cret"]


async def test_the_user_picks_from_a_list(tmp_path: Path) -> None:
    config = configuration([pick()], "${input:r}")
    async with terminal_user() as user:
        resolver = InputResolver(config.inputs, {}, store=SecretStore(tmp_path), terminal=Terminal(user.device))
        asking = asyncio.create_task(resolver.resolve(config.servers["git"]))
        await user.sees("1) eu\n  2) us\nWhich one? ")
        user.types("2\n")
        await user.sees("Keep 'r'")
        user.types("n\n")
        assert arguments(await asyncio.wait_for(asking, 30)) == ["us"]
    assert SecretStore(tmp_path).read() == {}


async def test_a_user_who_says_nothing_leaves_the_input_without_a_value(tmp_path: Path) -> None:
    config = configuration([prompt()])
    async with terminal_user() as user:
        resolver = InputResolver(config.inputs, {}, store=SecretStore(tmp_path), terminal=Terminal(user.device))
        asking = asyncio.create_task(resolver.resolve(config.servers["git"]))
        await user.sees("Its value: ")
        user.types("\n")
        with pytest.raises(CannotRun, match="input 'api key' has no value: set SMCP_INPUT_API_KEY"):
            await asyncio.wait_for(asking, 30)


@pytest.mark.parametrize(
    ("definition", "shown", "typed", "value"),
    [
        (prompt(default="eu-1"), "Its value [eu-1]: ", "", "eu-1"),
        (prompt(default="eu-1"), "Its value [eu-1]: ", "us-1", "us-1"),
        (prompt(default="hush", password=True), "Its value (not shown; Enter takes the default): ", "", "hush"),
        ({**pick(default="us"), "id": "api key"}, "2) us\nWhich one? [us] ", "", "us"),
        ({**pick(default="asia"), "id": "api key"}, "2) us\nWhich one? ", "1", "eu"),
    ],
)
async def test_the_default_is_offered_to_the_user_and_that_of_a_password_not_shown(
    definition: dict[str, Any], shown: str, typed: str, value: str
) -> None:
    config = configuration([definition])
    async with terminal_user() as user:
        resolver = InputResolver(config.inputs, {}, terminal=Terminal(user.device))
        asking = asyncio.create_task(resolver.resolve(config.servers["git"]))
        await user.sees(shown)
        user.types(f"{typed}\n")
        assert arguments(await asyncio.wait_for(asking, 30)) == [value]
        assert "hush" not in user.shown
        assert arguments(await asyncio.wait_for(resolver.resolve(config.servers["git"]), 30)) == [value], "asked once"


async def test_nobody_is_asked_for_a_value_of_this_run_and_a_closed_terminal_leaves_the_default() -> None:
    config = configuration([prompt(default="d")])
    async with terminal_user() as user:
        resolver = InputResolver(config.inputs, {"SMCP_INPUT_API_KEY": "set"}, terminal=Terminal(user.device))
        assert arguments(await asyncio.wait_for(resolver.resolve(config.servers["git"]), 30)) == ["set"]
        assert user.shown == ""
    ours, theirs = os.openpty()
    os.close(ours)
    resolver = InputResolver(config.inputs, {}, terminal=Terminal(theirs))
    assert arguments(await asyncio.wait_for(resolver.resolve(config.servers["git"]), 30)) == ["d"]
    os.close(theirs)


def configuration(inputs: list[dict[str, Any]], reference: str = "${input:api key}") -> ComputerConfig:
    return parse_config(json.dumps({"mcpServers": {"git": {"command": "x", "args": [reference]}}, "inputs": inputs}))


WEB = {"type": "streamable", "server_parameters": {"url": "http://x", "timeout": "${input:t}"}}


async def test_a_value_that_no_header_can_have_is_refused_and_not_repeated() -> None:
    web = {"type": "streamable", "server_parameters": {"url": "http://x", "headers": {"Token": "${input:t}"}}}
    inputs = [{"id": "t", "description": "", "type": "promptString", "default": "gr\u00fcn"}]
    config = parse_config(json.dumps({"servers": {"web": web}, "inputs": inputs}))
    named = r"server_parameters\.headers\.Token: must be a text of one line, in ASCII"
    with pytest.raises(CannotRun, match=named) as why:
        await InputResolver(config.inputs, {}).resolve(config.servers["web"])
    assert "gr" not in str(why.value)


@pytest.mark.rule("computer.start.validate")
@pytest.mark.parametrize(
    ("definition", "error"),
    [
        ({"type": "promptString", "default": "soon"}, CannotRun),
        ({"type": "command", "command": "echo", "args": {}}, ConfigError),
    ],
)
async def test_a_value_that_makes_the_parameters_invalid_is_refused(
    definition: dict[str, Any], error: type[ConfigError]
) -> None:
    inputs = [{"id": "t", "description": "", **definition}]
    config = parse_config(json.dumps({"servers": {"web": WEB}, "inputs": inputs}))
    with pytest.raises(ConfigError, match=r"^with the values put in, server_parameters\.timeout: ") as raised:
        await InputResolver(config.inputs, {"PATH": os.environ["PATH"]}).resolve(config.servers["web"])
    assert type(raised.value) is error  # what a program printed may be right another time
