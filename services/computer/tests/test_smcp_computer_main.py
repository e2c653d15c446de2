"""The command `smcp-computer`, as users run it."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from smcp_agent import SmcpAgent
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.gateway_world import gateway_world
from smcp_testing.issuer import settings as issued
from smcp_testing.issuer import shared_token
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

COMMAND = str(Path(sys.executable).with_name("smcp-computer"))


async def run(*arguments: str, fresh: bool = False, **environ: str) -> tuple[int | None, str, str]:
    """Args:
    fresh: in a Python of its own.
    """
    command = [COMMAND, *arguments] if fresh else born(COMMAND, *arguments, knows=COMMANDS)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, env={"PATH": os.environ["PATH"], **environ}
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)  # 23 s were measured at a load of 28
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def started(*arguments: str, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        COMMAND, "run", *arguments, stderr=PIPE, env={"PATH": os.environ["PATH"], **environ}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def write(path: Path, **servers: object) -> str:
    path.write_text(json.dumps({"servers": servers}))
    return str(path)


async def test_a_good_configuration_is_shown_and_nothing_is_started(tmp_path: Path) -> None:
    file = write(tmp_path / "c.json", box=configs.stdio())
    place = ("--office", "读 *", "--name", "pc")
    code, out, _ = await run("run", "--config", file, *place, "--strict", "--check-config")
    assert code == 0
    assert "SMCP_OFFICE=读 *" in out
    assert "SMCP_STRICT=True" in out


@pytest.mark.rule("computer.start.validate")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{oops", ["not JSON", "line 1, column 2"]),
        ("[]", ["not a JSON object"]),
        ('{"servers": {"git": {"type": "pipe"}}}', ["servers.git.type"]),
    ],
)
async def test_a_bad_file_is_wrong_usage(tmp_path: Path, content: str, words: list[str]) -> None:
    file = tmp_path / "c.json"
    file.write_text(content)
    for arguments in (["run", "--office", "o", "--name", "n", "--config"], ["validate"]):
        code, _, err = await run(*arguments, str(file))
        assert code == 2
        assert all(word in err for word in words)
        assert "Traceback" not in err


async def test_a_missing_or_illegal_name_is_wrong_usage(tmp_path: Path) -> None:
    file = write(tmp_path / "c.json")
    for arguments, word in ((["--office", "o"], "SMCP_NAME"), (["--office", "o" * 129, "--name", "n"], "--office")):
        code, _, err = await run("run", "--config", file, *arguments)
        assert code == 2
        assert word in err


@pytest.mark.rule("answers.config.validate")
async def test_a_confirming_program_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    arguments = ("run", "--config", write(tmp_path / "c.json"), "--office", "o", "--name", "n", "--check-config")
    code, _, err = await run(*arguments, SMCP_CONFIRM_COMMAND="/nonexist --now")
    assert (code, "SMCP_CONFIRM_COMMAND: names no program that can be run" in err) == (2, True)


async def test_validate_warns_of_literal_secrets(tmp_path: Path) -> None:
    server = {"type": "stdio", "server_parameters": {"command": sys.executable, "args": ["--token=abcdef"]}}
    code, out, err = await run("validate", write(tmp_path / "c.json", git=server))
    assert code == 0
    assert "1 server, 0 inputs, valid" in out
    assert "servers.git.server_parameters.args.0" in err
    assert "abcdef" not in err + out


async def test_a_placeholder_of_a_shell_gets_one_warning_and_is_no_literal_secret(tmp_path: Path) -> None:
    web = {"type": "http", "url": "http://x/mcp", "headers": {"Authorization": "Bearer $TOKEN"}}
    code, _, err = await run("validate", write(tmp_path / "c.json", web=web))
    assert code == 0
    (warning,) = err.splitlines()
    assert warning.endswith(".Authorization: write ${env:TOKEN}: this form is not replaced")


async def test_names_in_a_file_cannot_control_the_terminal(tmp_path: Path) -> None:
    code, out, err = await run("validate", write(tmp_path / "c.json", **{"a\x1b[31m\u202eb": {"command": 1}}))
    assert code == 2
    assert "a\\u001b[31m\\u202eb" in err
    assert not {"\x1b", "\u202e"} & set(out + err)


DOUBTFUL: dict[str, Any] = {
    "servers": {
        "git": {**configs.stdio(fresh=True), "forbiden_tools": ["push"]},
        "web": {"type": "sse", "server_parameters": {"url": "http://x/${input:hots}"}},
    },
    "inputs": [
        {"id": "host", "type": "promptString", "description": ""},
    ],
}
DOUBTS = (
    "servers.git.forbiden_tools: did you mean 'forbidden_tools'? It is not a known field",
    "servers.web.server_parameters.url: ${input:hots}: did you mean 'host'? It is not the id of an input",
)


async def test_validate_warns_of_unknown_fields(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps(DOUBTFUL))
    code, out, err = await run("validate", str(file))
    assert (code, "2 servers" in out) == (0, True)
    assert sorted(err.splitlines()) == sorted(f"warning: {file}: {doubt}" for doubt in DOUBTS)


async def test_run_shows_the_same_warnings(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps(DOUBTFUL))
    code, _, err = await run("run", "--config", str(file), "--office", "o", "--name", "n", "--check-config")
    assert code == 0
    assert all(f"warning: {file}: {doubt}" in err for doubt in DOUBTS)


async def test_run_says_each_error_and_each_warning_of_a_bad_file_on_a_line_of_its_own(tmp_path: Path) -> None:
    good = {"command": "cat", "unknown": 1}
    file = write(tmp_path / "c.json", bad={"command": "x", "args": "y", "env": "z"}, good=good)
    code, _, err = await run("run", *PLACE, "--config", file)
    assert (code, [line.partition(f": {file}: ")[0] for line in err.splitlines()]) == (2, ["error", "error", "warning"])


async def test_validate_warns_of_a_file_without_servers(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text("{}")
    code, _, err = await run("validate", str(file))
    assert (code, err) == (0, f"warning: {file}: names no MCP servers, so none runs\n")


async def test_validate_says_all_errors_and_warnings_together(tmp_path: Path) -> None:
    file = write(
        tmp_path / "c.json",
        broken={"type": "stdio", "server_parameters": {}},
        url={"type": "http", "url": "localhost:8000"},
        gone={"command": "no-such-program", "alwaysAllow": ["*"]},
        dear={"command": sys.executable, "args": ["--token=abcdef", "$HOME"]},
    )
    expected = {
        "servers.broken.server_parameters.command": "error",
        "servers.url.url": "error",
        "servers.gone.alwaysAllow": "warning",
        "servers.dear.args.0": "warning",
        "servers.dear.args.1": "warning",
    }
    code, _, err = await run("validate", file)
    assert code == 2
    said = [line.split(": ")[:3] for line in err.splitlines()]
    assert sorted(said) == sorted([kind, file, place] for place, kind in expected.items())
    code, out, err = await run("validate", file, "--json")
    report = json.loads(out)
    assert (code, err, report.keys()) == (2, "", {"errors", "warnings"})
    assert {text.split(": ")[0] for text in report["errors"]} == {
        place for place, kind in expected.items() if kind == "error"
    }


async def test_a_file_of_another_host_is_shown_as_ours_and_written(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "mcp.json", tmp_path / "computer.json"
    server = '{"command": "y", "alwaysAllow": ["*"], "env": {"TOKEN": "hunter2"}}'
    theirs.write_text(f'{{"mcpServers": {{"x": {server}}}, /* of no use here */ "theme": 1}}')
    code, out, err = await run("import", str(theirs), "--write", str(ours))
    assert code == 0
    parameters = {"command": "y", "env": {"TOKEN": "hunter2"}}
    assert json.loads(ours.read_text()) == {"servers": {"x": {"type": "stdio", "server_parameters": parameters}}}
    assert out == f"{ours} is written: x\n"
    warned = {"mcpServers.x.alwaysAllow", "mcpServers.x.env.TOKEN", "theme"}
    assert {line.split(": ")[2] for line in err.splitlines()} == warned
    code, out, _ = await run("import", str(theirs))
    assert (code, json.loads(out)) == (0, json.loads(ours.read_text()))
    code, out, err = await run("import", str(theirs), "--json")
    assert (code, err, json.loads(out)["configuration"]) == (0, "", json.loads(ours.read_text()))
    assert {each.split(": ")[0] for each in json.loads(out)["warnings"]} == warned
    code, out, err = await run("import", str(theirs), "--write", str(ours))
    assert (code, out, err.splitlines()[-1]) == (
        2,
        "",
        f"error: {ours}: is there already: write the result to another file, and move its servers by hand",
    )
    theirs.write_text('{"mcpServers": {"x": {"command": 7}}}')
    code, out, err = await run("import", str(theirs))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {theirs}: mcpServers.x.command: ")
    theirs.write_text('{"name": "package", "version": "1.0.0"}')
    code, out, err = await run("import", str(theirs), "--write", str(tmp_path / "other.json"))
    assert (code, out, err.splitlines()[0]) == (2, "", f"error: {theirs}: names no MCP server")
    assert not (tmp_path / "other.json").exists()


async def test_the_schema_of_the_file_is_printed_as_it_is_published() -> None:
    code, out, _ = await run("schema", "--json")
    published = Path(__file__).parents[3] / "docs" / "schemas" / "computer-config.json"
    assert (code, json.loads(out)) == (0, json.loads(published.read_text()))


async def test_variables_of_an_environment_file_count_where_none_are_set(tmp_path: Path) -> None:
    file, env = write(tmp_path / "c.json", x={"command": "cat"}), tmp_path / ".env"
    env.write_text("SMCP_OFFICE=theirs\nexport SMCP_NAME='pc 2'\n")
    arguments = ("run", "--config", file, "--check-config", "--env-file")
    code, out, _ = await run(*arguments, str(env), SMCP_OFFICE="ours")
    assert (code, "SMCP_OFFICE=ours" in out, "SMCP_NAME=pc 2" in out) == (0, True, True)
    code, _, err = await run(*arguments, str(tmp_path / "none"))
    assert (code, err) == (2, f"error: --env-file: {tmp_path / 'none'}: cannot be read: No such file or directory\n")


async def test_without_nats_the_command_fails_with_one_sentence(tmp_path: Path) -> None:
    file = write(tmp_path / "c.json")
    arguments = ["run", "--config", file, "--office", "o", "--name", "n"]
    code, _, err = await run(*arguments, fresh=True, SMCP_NATS_URL="nats://127.0.0.1:1")
    assert code == 1
    assert "Traceback" not in err
    assert "127.0.0.1:1" in err


async def test_a_computer_that_is_told_neither_a_gateway_nor_nats_says_at_once_what_to_set(tmp_path: Path) -> None:
    code, _, err = await run("run", "--config", write(tmp_path / "c.json"), *PLACE)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--gateway (SMCP_GATEWAY_URL): is missing" in err


@pytest.mark.rule("events.must.computer.rooms", "computer.main.order", "computer.main.stop", "computer.safety.zombies")
async def test_the_command_runs_until_stopped_and_leaves_no_process(nats_url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "c.json", box=configs.stdio(fresh=True), bad=configs.stdio("no_such_module", fresh=True))
    async with (
        open_bus(BusConfig(url=nats_url)) as bus,
        open_registry(RegistrySettings(nats_url=nats_url), bus) as registry,
        started(
            "--config", file, "--office", "lab", "--name", "pc", SMCP_NATS_URL=nats_url, SMCP_LOG_FORMAT="json"
        ) as process,
    ):
        health = ""
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while not health:
                line = json.loads(await process.stderr.readline())
                health = line.get("health", "")
        reading = asyncio.create_task(process.stderr.read())

        def ready() -> bool:
            with urlopen(f"{health}/readyz") as answer:
                return bool(answer.status == 200)

        await eventually(lambda: _quietly(ready), timeout=60)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        await eventually(lambda: len(list(registry.view.members("lab"))) == 1)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        await reading
        await eventually(lambda: not any(child.is_running() for child in family))
        await eventually(lambda: not list(registry.view.members("lab")))


def _quietly(check: object) -> bool:
    try:
        return bool(check())  # type: ignore[operator]
    except OSError:
        return False


SECRET = "a shared secret of the tests, long enough"
PLACE = ("--office", "office", "--name", "pc")


@pytest.mark.parametrize("renewed", [False, True])
async def test_a_computer_at_a_gateway_needs_an_address_and_a_token_only(
    nats_url: str, tmp_path: Path, renewed: bool
) -> None:
    file, token = write(tmp_path / "c.json", box=configs.stdio()), tmp_path / "token"
    token.write_text("wrong\n" if renewed else shared_token(SECRET, sub="pc"))
    async with gateway_world(nats_url, settings=issued(auth_secret=SECRET)) as world:
        variables = {"SMCP_GATEWAY_URL": f"http://127.0.0.1:9,{world.url}", "SMCP_TOKEN_FILE": str(token)}
        if not renewed:
            variables = {"SMCP_TOKEN": token.read_text()}
        by = [] if renewed else ["--gateway", "http://127.0.0.1:9", "--gateway", world.url]
        async with (
            started("--config", file, *PLACE, *by, **variables, SMCP_LOG_FORMAT="json") as process,
            SmcpAgent(world.url, office="office", name="anna", token=shared_token(SECRET)) as agent,
        ):
            assert process.stderr is not None
            lines: list[str] = []

            async def read(stderr: asyncio.StreamReader) -> None:
                while line := await stderr.readline():
                    lines.append(line.decode())

            reading = asyncio.create_task(read(process.stderr))
            if renewed:
                await eventually(lambda: any("token is not accepted" in line for line in lines), timeout=60)
                token.write_text(shared_token(SECRET, sub="pc"))
            await eventually(lambda: agent.computers() == ["pc"], timeout=60)
            added = await agent.call_tool("pc", "add", {"a": 40, "b": 2})
            assert added.structured_content == {"result": 42}
            family = psutil.Process(process.pid).children(recursive=True)
            assert family
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 20) == 0
            await reading
            await eventually(lambda: not any(child.is_running() for child in family))
            await eventually(lambda: agent.computers() == [])
            assert shared_token(SECRET, sub="pc")[:20] not in "".join(lines), "a token must not be logged"


@pytest.mark.parametrize(
    ("arguments", "environ", "word"),
    [
        (["--gateway", "http://h:1"], {"SMCP_NATS_URL": "nats://h:4222"}, "SMCP_NATS_URL"),
        (["--gateway", "h:1"], {}, "--gateway (SMCP_GATEWAY_URL): 'h:1' is not like http://host:port"),
        ([], {"SMCP_GATEWAY_URL": "http://h:1,"}, "SMCP_GATEWAY_URL"),
        (["--gateway", "http://h:1", "--token", "two words"], {}, "--token (SMCP_TOKEN): has to be"),
        (
            ["--gateway", "http://h:1", "--token", "x", "--token-file", "/dev/null"],
            {},
            "--token-file (SMCP_TOKEN_FILE)",
        ),
    ],
)
async def test_wrong_connection_options_are_wrong_usage(
    tmp_path: Path, arguments: list[str], environ: dict[str, str], word: str
) -> None:
    file = write(tmp_path / "c.json")
    code, _, err = await run("run", "--config", file, *PLACE, *arguments, "--check-config", fresh=False, **environ)
    assert code == 2
    assert word in err
    assert "two words" not in err


async def test_a_token_is_not_shown(tmp_path: Path) -> None:
    file = write(tmp_path / "c.json")
    code, out, err = await run(
        "run", "--config", file, *PLACE, "--gateway", "http://h:1", "--check-config", SMCP_TOKEN="a-secret"
    )
    assert code == 0
    assert "SMCP_GATEWAY_URL=http://h:1" in out
    assert "a-secret" not in out + err
