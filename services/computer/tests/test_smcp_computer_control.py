"""What the user of a host asks a running Computer for, by its control socket and by the commands."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text
from typer.testing import CliRunner, Result

from smcp_computer.config.file import parse_config
from smcp_computer.control import LOCAL, open_control
from smcp_computer.control_commands import RunningComputer, find, print_result, print_table, running
from smcp_computer.main import app
from smcp_computer.settings import SOCKET, ComputerSettings, state_path
from smcp_service.lifecycle import Failure
from smcp_testing.computer_office import NAME, OFFICE, World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually


@pytest.fixture(autouse=True)
def _states(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory of the test's own for the state of its Computers; short, since a socket's path is."""
    with TemporaryDirectory(prefix="s-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        for name in ("SMCP_STATE_DIR", "SMCP_OFFICE", "SMCP_NAME", "SMCP_CONFIG"):
            monkeypatch.delenv(name, raising=False)
        yield


def settings(name: str = NAME, config: Path = Path("unused")) -> ComputerSettings:
    return ComputerSettings(config=config, office=OFFICE, name=name)


@asynccontextmanager
async def controlled(nats_url: str, **servers: dict[str, Any]) -> AsyncIterator[World]:
    state = {"state_dir": state_path(settings())}
    async with world(nats_url, state, **servers) as here, open_control(settings(), here.computer):
        yield here


async def command(*arguments: str, typed: str = "") -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments), input=typed, catch_exceptions=True)


def why_not(result: Result) -> str:
    assert isinstance(result.exception, Failure), result.output
    return str(result.exception)


async def test_a_state_directory_that_cannot_be_written_to_is_a_sentence() -> None:
    (state_path(settings()) / "lock").mkdir(parents=True)
    with pytest.raises(Failure, match=r"SMCP_STATE_DIR: .* cannot be made or written to: Is a directory"):
        async with open_control(settings()):
            pass


async def test_status_shows_the_computer_and_all_its_servers(nats_url: str) -> None:
    off = {**configs.stdio(), "disabled": True}
    async with controlled(nats_url, box=configs.stdio(), off=off):
        said = json.loads((await command("status", "--json")).stdout)
        assert (said["office"], said["name"], said["ready"]) == (OFFICE, NAME, True)
        states = {each["name"]: (each["state"], each["pid"] is not None) for each in said["servers"]}
        assert states == {"box": ("ready", True), "off": ("disabled", False)}
        shown = await command("status", "--office", OFFICE, "--name", NAME)
        assert shown.exit_code == 0
        assert all(each in shown.stdout for each in ("box", "ready", "off", "disabled", "MB"))


async def test_status_says_where_more_stands_about_a_server_that_does_not_run(nats_url: str) -> None:
    servers = {"box": configs.stdio(), "a bad": {"command": "false"}, "worse": {"command": "false"}}
    async with controlled(nats_url, **servers) as here:
        await eventually(lambda: all(here.computer.fleet.supervisors[each].reason for each in ("a bad", "worse")))
        more = "More about why: smcp-computer logs 'a bad', smcp-computer logs worse\n"
        assert (await command("status")).stderr == more


async def test_status_names_the_file_that_names_no_servers(nats_url: str) -> None:
    async with controlled(nats_url):
        assert f"No MCP servers: {Path('unused').absolute()} names none" in (await command("status")).stderr


async def test_a_tool_is_listed_called_and_its_call_cancelled_as_those_of_agents(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = tmp_path / "log"
    async with controlled(nats_url, box={**configs.stdio(log=log), "forbidden_tools": ["append"]}) as here:
        listed = json.loads((await command("tools", "--json")).stdout)["tools"]
        assert ("add", "box") in {(each["name"], each["server"]) for each in listed}
        assert "append" not in {each["name"] for each in listed}
        assert json.loads((await command("status", "--json")).stdout)["servers"][0]["tools"] == len(listed)
        called = await command("call", "add", "--params", '{"a": 40, "b": 2}')
        assert (called.exit_code, called.stdout.strip()) == (0, "42")
        assert (await command("call", "boom")).exit_code == 1
        exact = await command("call", "add", f"a={2**70}", "b=1")
        assert (exact.exit_code, exact.stdout.strip()) == (0, str(2**70 + 1))
        words = await command("call", "add", "a=40", "-", typed='{"b": 2}')
        assert (words.exit_code, words.stdout.strip()) == (0, "42")
        wrong = await command("call", "add", "a=x", "b=2")
        assert (wrong.exit_code, "'x' is not of type integer" in wrong.stderr) == (2, True)
        assert LOCAL in {record.__dict__.get("agent") for record in caplog.records}
        whole = json.loads((await command("call", "add", "--params", '{"a": 1, "b": 1}', "--json")).stdout)
        assert whole["structuredContent"] == {"result": 2}
        told = json.loads((await command("history", "--json")).stdout)["servers"]
        calls = told["box"]
        assert [(call["tool"], call["agent"], call["outcome"]) for call in calls] == [("add", LOCAL, "ok")] * 4
        [unknown] = told[""]
        assert (unknown["tool"], unknown["outcome"], unknown["why"]) == (
            "boom", "refused", "this Computer has no tool 'boom'"
        )  # fmt: skip
        shown = (await command("history")).stdout
        assert "add" in shown
        assert "boom" in shown
        computer = await asyncio.to_thread(find, None, None)
        slow = {"tool_name": "sleep", "params": {"seconds": 60}, "timeout": 60}
        with pytest.raises(Failure, match="did not answer"):
            await asyncio.to_thread(computer.ask, "POST", "call", body=slow, timeout=1)
        await eventually(lambda: not here.computer.owner.running)


async def test_a_tool_that_asks_for_input_is_cancelled_and_the_user_reads_its_question(
    nats_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with controlled(nats_url, box=configs.stdio("eliciting", "--era", "2025", log=log)) as here:
        called = await command("call", "book")
        assert called.exit_code == 1
        assert "The question: Which day (1)?" in called.stdout
        await eventually(lambda: log.exists() and log.read_text() == "cancelled book\n")
        assert here.computer.calls.held()["open_elicitations"] == 0


def test_what_is_no_text_in_a_result_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    print_result({"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]})
    assert capsys.readouterr().out == "[image/png, 3 bytes, not shown]\n"


@pytest.mark.parametrize(("columns", "first"), [(30, "box"), (60, "┏")])
def test_a_table_that_is_too_wide_for_the_terminal_becomes_lines_that_fit(
    columns: int, first: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table("Server", {"State": 8, "Reason": 20}, [("box", "backoff", "its process ended " * 3)], "")
    shown = capsys.readouterr().out
    assert shown.startswith(first)
    assert max(cell_len(Text.from_ansi(line).plain) for line in shown.splitlines()) <= columns


async def test_a_server_is_restarted_by_hand(nats_url: str) -> None:
    async with controlled(nats_url, box=configs.stdio()):
        (before,) = json.loads((await command("status", "--json")).stdout)["servers"]
        (now,) = json.loads((await command("servers", "restart", "box", "--json")).stdout)["servers"]
        assert now["state"] == "ready"
        assert now["pid"] not in (None, before["pid"])
        why = why_not(await command("servers", "restart", "bxo"))
        assert why == "no MCP server 'bxo' runs here; did you mean 'box'?"
    async with controlled(nats_url, box={**configs.stdio(), "disabled": True}):
        why = why_not(await command("servers", "restart", "box"))
        assert why == "no MCP server 'box' runs here"


async def test_a_change_of_one_server_shows_that_one_alone(nats_url: str) -> None:
    async with controlled(nats_url, box=configs.stdio(), other=configs.stdio()):
        shown = (await command("servers", "restart", "box")).stdout
        assert ("box" in shown, "other" in shown) == (True, False)


EXIT_CODES: dict[tuple[int, str], list[tuple[str, ...]]] = {
    (0, "done"): [
        ("call", "add", "--params", '{"a": 1, "b": 2}'),
    ],
    (1, "a tool that fails"): [
        ("call", "boom"),
        ("call", "sleep", "--params", '{"seconds": 60}', "--timeout", "1"),
    ],
    (1, "an unknown tool, MCP server or Computer"): [
        ("call", "ad"),
        ("servers", "restart", "bxo"),
        ("logs", "bxo"),
        ("status", "--name", "nobody"),
    ],
    (2, "wrong usage"): [
        ("status", "--nmae", "pc"),
    ],
    (2, "parameters that a tool does not take"): [
        ("call", "add", "--params", '{"a": "x", "b": 2}'),
        ("call", "add", "--params", "{"),
    ],
    (2, "a file that cannot be read or is invalid"): [
        ("validate", "missing"),
        ("import", "missing"),
        ("secrets", "encrypt", "missing"),
        ("servers", "rm", "x"),
    ],
}


async def test_exit_codes_are_those_of_the_page(nats_url: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "settings.md").read_text(encoding="utf-8")
    async with controlled(nats_url, box=configs.stdio()):
        for (code, example), commands in EXIT_CODES.items():
            assert example in next(line for line in page.splitlines() if line.startswith(f"| {code} |"))
            for arguments in commands:
                ended = await command(*arguments)
                failure = ended.exception
                found = failure.exit_code if isinstance(failure, Failure) else ended.exit_code
                assert (arguments, found) == (arguments, code)


async def test_names_that_were_probably_meant_are_told(nats_url: str) -> None:
    async with controlled(nats_url, box=configs.stdio()):
        assert (await command("call", "ad")).stdout.strip() == "this Computer has no tool 'ad'; did you mean 'add'?"
        assert "'bxo'; did you mean 'box'?; there are: box;" in why_not(await command("logs", "bxo"))


async def test_a_server_is_added_with_the_warnings_about_its_settings(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text('{"servers": {}}')
    async with world(nats_url, {"config": file}) as here, open_control(settings(config=file), here.computer):
        added = await command("servers", "add", "box", "--", "cat", "${HOME}")
        assert added.exit_code == 1  # it is not an MCP server
        assert "warning: servers.box.server_parameters.args.0: write ${env:HOME}" in added.stderr.replace("\n", " ")
        assert "box" in json.loads(file.read_text())["servers"]
        assert why_not(added).startswith("the MCP server 'box' does not run (backoff): ")
        disabled = await command("servers", "disable", "box", "--json")
        assert [each["state"] for each in json.loads(disabled.stdout)["servers"]] == ["disabled"]


async def test_the_socket_is_for_its_user_alone_and_goes_with_the_computer(nats_url: str) -> None:
    path = state_path(settings()) / SOCKET
    async with controlled(nats_url):
        assert path.is_socket()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.exists()


async def test_a_second_computer_of_a_name_runs_without_commands_and_the_socket_of_a_dead_one_is_taken_over(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stale = state_path(settings())
    stale.mkdir(mode=0o700, parents=True)
    (stale / SOCKET).touch()
    async with controlled(nats_url) as here:
        async with open_control(settings(), here.computer):
            assert "another process has the control socket" in caplog.text
            assert "give this one another --name" in caplog.text
        assert [each.name for each in await asyncio.to_thread(running)] == [NAME]


async def test_commands_find_the_only_computer_or_ask_which_one_is_meant(nats_url: str) -> None:
    assert "no Computer of this user runs here" in why_not(await command("status"))
    async with controlled(nats_url) as here, open_control(settings("other"), here.computer):
        assert "--name other" in why_not(await command("status"))
        assert json.loads((await command("status", "--name", "other", "--json")).stdout)["name"] == "other"
        unknown = why_not(await command("status", "--name", "none"))
        assert "--name none; there are:" in unknown
        assert all(f"--office {OFFICE} --name {each}" in unknown for each in (NAME, "other"))


async def test_secrets_are_those_of_the_only_computer_or_of_the_one_that_is_meant(nats_url: str) -> None:
    async with controlled(nats_url) as here:
        kept = await command("secrets", "set", "tokn", typed="v4lue-of-it")
        assert "no input of its configuration has this id; there are: none" in kept.stderr
        async with open_control(settings("other"), here.computer):
            assert "say which one" in why_not(await command("secrets", "list"))
            assert (await command("secrets", "list", "--name", NAME)).stdout == "tokn\n"
            not_running = ("--office", OFFICE, "--name", "not running")
            assert "No secrets." in (await command("secrets", "list", *not_running)).stderr


async def test_one_that_starts_says_so_and_is_not_found_yet(nats_url: str) -> None:
    async with open_control(settings()) as control:
        assert "or it has not started yet" in why_not(await command("status"))
        with pytest.raises(Failure, match="the Computer is starting"):
            await asyncio.to_thread(RunningComputer(state_path(settings()), OFFICE, NAME).ask, "GET", "status")
        async with world(nats_url) as here:
            control.computer = here.computer
            assert json.loads((await command("status", "--json")).stdout)["name"] == NAME


async def test_a_path_that_is_too_long_for_a_socket_costs_the_commands_alone(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("x" * 120)))
    async with controlled(nats_url) as here:
        assert "commands cannot reach this Computer" in caplog.text
        assert here.computer.readiness.problems() == {}


async def test_what_is_no_request_is_refused_with_a_reason(nats_url: str) -> None:
    async with controlled(nats_url):
        assert "not JSON" in (await command("call", "add", "--params", "{")).output
        computer = await asyncio.to_thread(find, None, None)
        for path, body, why in (
            ("call", [], "not a JSON object"),
            ("call", {"tool_name": "add", "params": {}, "timeout": 0}, "timeout"),
            ("nothing", {}, "Not Found"),
        ):
            with pytest.raises(Failure, match=why):
                await asyncio.to_thread(computer.ask, "POST", path, body=body)


async def test_the_inputs_are_shown_with_the_sources_of_their_values_and_without_them(nats_url: str) -> None:
    inputs = [
        {"id": "user", "type": "promptString", "description": "who", "default": "anna"},
        {"id": "token", "type": "promptString", "description": "secret", "password": True},
        {"id": "made", "type": "command", "description": "by a program", "command": "true"},
    ]
    off = {**configs.stdio(env={"WHO": "${input:user}"}), "disabled": True}
    async with controlled(nats_url) as here:
        here.computer.fleet.apply(parse_config(json.dumps({"servers": {"off": off}, "inputs": inputs})))
        said = await command("inputs", "--json")
        found = {each["id"]: each["source"] for each in json.loads(said.stdout)["inputs"]}
        assert found == {"user": "its default", "token": None, "made": "its program"}
        assert "anna" not in said.stdout
        assert "it has no value" in (await command("inputs")).stdout


async def test_a_server_that_lacked_a_value_is_started_by_a_restart_once_that_is_kept(nats_url: str) -> None:
    inputs = [{"id": "token", "type": "promptString", "description": "secret", "password": True}]
    config = {"servers": {"box": configs.stdio(env={"TOKEN": "${input:token}"})}, "inputs": inputs}
    async with controlled(nats_url, other=configs.stdio()) as here:
        here.computer.fleet.apply(parse_config(json.dumps(config)))
        box = here.computer.fleet.supervisors["box"]
        await eventually(lambda: box.state == "failed")
        assert "input 'token' has no value: set SMCP_INPUT_TOKEN" in box.reason
        assert box.reason in (await command("logs", "box")).stdout
        why = why_not(await command("servers", "restart", "box"))
        assert why.startswith("the MCP server 'box' does not run (failed)")
        kept = await command("secrets", "set", "token", "--json", typed="v4lue-of-it\n")
        assert json.loads(kept.stdout) == {"kept": "token"}
        said = json.loads((await command("servers", "restart", "box", "--json")).stdout)
        assert {each["name"]: each["state"] for each in said["servers"]}["box"] == "ready"
        again = await command("secrets", "set", "token", typed="another-0ne\n")
        assert (again.exit_code, again.stdout) == (0, "")
        assert "servers restart SERVER" in again.stderr
        assert "no input" not in again.stderr
        assert json.loads((await command("inputs", "--json")).stdout)["inputs"][0]["source"] == "its kept value"


async def test_a_file_that_cannot_be_used_is_said_to_the_user_with_its_path_and_to_agents_without(
    nats_url: str,
) -> None:
    async with controlled(nats_url) as here:
        await here.computer.reload()
        said = json.loads((await command("status", "--json")).stdout)
        assert said["config_problem"].startswith("unused: cannot be read")
        assert (await here.ask("get_status"))["config_problem"].startswith("cannot be read")
        shown = (await command("status")).stderr
        assert "unused is invalid, the previous one stays in use" in shown
        assert shown.count("cannot be read") == 1
