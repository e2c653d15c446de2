import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from smcp_agent.cli.main import app
from smcp_testing.agent_command import COMMAND, PATIENCE_S, ended, start
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]


async def run(gateway: FakeGateway, *arguments: str, columns: int = 120) -> tuple[int | None, str, str]:
    """Exit code, standard output, standard error."""
    code, out, err = await ended(await start(gateway, *arguments, columns=columns, forked=True))
    return code, out.decode(), err


async def unavailable(data: JsonObject) -> Any:
    return {"code": 503, "message": "not now", "details": {}}


async def not_found(data: JsonObject) -> Any:
    return {"code": 404, "message": "no such Computer", "details": {}}


async def test_list_shows_who_is_in_the_office() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["厨房"] = []
        code, out, _ = await run(gateway, "--name", "me", "list")
        assert code == 0
        assert "厨房" in out
        assert "computer" in out
        code, out, err = await run(gateway, "--name", "me", "--json", "list")
        assert code == 0
        assert err == ""
        listed = json.loads(out)
        assert listed["office_id"] == "office"
        assert [(each["name"], each["role"]) for each in listed["sessions"]] == [("厨房", "computer"), ("me", "agent")]


async def test_tools_shows_a_computers_tools_with_their_parameters() -> None:
    async with fake_gateway() as gateway:
        properties = {"a": {"type": "integer"}, "[b]": {}}
        gateway.computers["red"] = [tool("add", "Adds [up].", properties=properties, required=["a"])]
        code, out, _ = await run(gateway, "tools", "red")
        assert code == 0
        assert "a*: integer" in out
        assert "[b]" in out
        assert "Adds [up]." in out
        code, out, _ = await run(gateway, "tools", "red", "--json")
        assert code == 0
        assert json.loads(out) == {"computer": "red", "tools": gateway.computers["red"]}


async def test_call_prints_the_tools_text_or_the_result_as_json() -> None:
    async with fake_gateway() as gateway:
        arguments = ("call", "red", "echo", "--params", '{"x": [1]}', "--timeout", "9")
        code, out, err = await run(gateway, *arguments)
        assert (code, out, err) == (0, "echo\n", "")
        (request,) = gateway.seen("client:tool_call")
        assert (request["params"], request["timeout"]) == ({"x": [1]}, 9)
        code, out, _ = await run(gateway, "--json", *arguments[:-1], "9.0")
        assert code == 0
        assert gateway.seen("client:tool_call")[-1]["timeout"] == 9
        req_id = gateway.seen("client:tool_call")[-1]["req_id"]
        assert json.loads(out) == {
            "content": [{"type": "text", "text": "echo"}], "isError": False, "req_id": req_id, "trace_id": req_id,
        }  # fmt: skip


async def test_a_failing_tool_ends_with_1_and_its_output() -> None:
    async with fake_gateway() as gateway:

        async def answer(data: JsonObject) -> Any:
            return {"content": [{"type": "text", "text": "no disk"}], "isError": True}

        gateway.answers["client:tool_call"] = answer
        code, out, err = await run(gateway, "call", "red", "echo")
        assert (code, out) == (1, "no disk\n")
        assert "the tool failed" in err


async def test_an_error_ends_with_1_and_is_json_for_programs() -> None:
    async with fake_gateway() as gateway:
        gateway.answers["client:tool_call"] = unavailable
        code, out, err = await run(gateway, "call", "red", "echo")
        assert (code, out) == (1, "")
        assert "error 503: not now" in err
        assert "try again" in err
        code, out, _ = await run(gateway, "--json", "call", "red", "echo")
        assert code == 1
        req_id = gateway.seen("client:tool_call")[-1]["req_id"]
        assert json.loads(out) == {
            "code": 503, "message": "not now", "details": {}, "req_id": req_id, "trace_id": req_id,
        }  # fmt: skip


@pytest.mark.parametrize("command", [["tools", "kitchn"], ["call", "kitchn", "echo"]])
async def test_of_a_computer_that_is_not_there_it_is_said_which_ones_are(command: list[str]) -> None:
    async with fake_gateway() as gateway:
        gateway.computers = {"kitchen": [], "bath": []}
        gateway.answers["client:tool_call"] = not_found
        code, out, err = await run(gateway, *command)
        assert (code, out) == (1, "")
        assert "error 404: there is no Computer 'kitchn' in the office 'office'" in err
        assert "Did you mean 'kitchen'?" in err
        assert "There are: bath, kitchen." in err


async def test_of_a_tool_that_is_not_there_it_is_said_that_the_computer_is_and_what_is_near() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red box"] = [tool("echo"), tool("add")]

        async def answer(data: JsonObject) -> Any:
            return {"content": [{"type": "text", "text": "this Computer has no tool 'ehco'"}], "isError": True}

        gateway.answers["client:tool_call"] = answer
        code, out, err = await run(gateway, "call", "red box", "ehco")
        assert (code, out) == (1, "this Computer has no tool 'ehco'\n")
        assert "The Computer 'red box' is there, and lists no tool 'ehco'. Did you mean 'echo'?" in err
        assert "smcp-agent tools 'red box'" in err
        code, _, err = await run(gateway, "call", "red box", "echo")
        assert code == 1
        assert "lists no tool" not in err


async def test_of_a_tool_that_is_forbidden_nothing_is_said_but_that() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("read_file")]

        async def answer(data: JsonObject) -> Any:
            text = {"type": "text", "text": "the tool 'write_file' is forbidden on this Computer"}
            return {"content": [text], "isError": True, "meta": {"a2c_forbidden": True}}

        gateway.answers["client:tool_call"] = answer
        code, out, err = await run(gateway, "call", "red", "write_file")
        assert (code, out) == (1, "the tool 'write_file' is forbidden on this Computer\n")
        assert err.strip() == "the tool failed"


async def test_what_is_too_large_is_said_in_mebibytes_with_the_setting_that_limits_it() -> None:
    async with fake_gateway() as gateway:

        async def answer(data: JsonObject) -> Any:
            details = {"size": 40_000_081, "limit": 32 * 1024 * 1024}
            return {"code": 413, "message": "the result is too large", "details": details}

        gateway.answers["client:tool_call"] = answer
        code, _, err = await run(gateway, "call", "red", "echo")
        assert code == 1
        assert "error 413: the result is too large" in err
        assert "38.2 MiB, and at most 32.0 MiB are carried: SMCP_MAX_PAYLOAD" in err
        assert "structured content" in err


async def test_a_terminal_gets_no_control_characters_and_a_program_gets_them_all() -> None:
    nasty = "a\x07\x00b\x1b[31mc\x1b[0m\r\n\td\x9b1m\u061c\u200e\u200f\u202a\u202e\u2066\u2069e"
    kept_back = set(nasty) - set("abc[31m0\n\tde")
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo", nasty)]

        async def answer(data: JsonObject) -> Any:
            return {"content": [{"type": "text", "text": nasty}]}

        gateway.answers["client:tool_call"] = answer
        code, out, _ = await run(gateway, "call", "red", "echo")
        assert (code, out) == (0, "abc\n\tde\n")
        code, out, _ = await run(gateway, "call", "red", "echo", "--json")
        assert json.loads(out)["content"][0]["text"] == nasty
        assert not kept_back & set(out), "JSON says it in other words"
        code, out, _ = await run(gateway, "tools", "red")
        assert code == 0
        assert not kept_back & set(out)

        async def refuse(data: JsonObject) -> Any:
            return {"code": 503, "message": nasty, "details": {}}

        gateway.answers["client:tool_call"] = refuse
        code, _, err = await run(gateway, "call", "red", "echo")
        assert code == 1
        assert not kept_back & set(err)


async def test_names_are_shown_whole_however_narrow_the_terminal_is() -> None:
    async with fake_gateway() as gateway:
        name = "a_server_with_a_long_name__a_tool_with_a_long_name_too_and_more"
        gateway.computers["厨房" * 40] = [
            tool(name, "Does " + "very " * 20 + "much.", properties={"x": {"type": "string"}})
        ]
        code, out, _ = await run(gateway, "tools", "厨房" * 40, columns=60)
        assert code == 0
        assert name in out
        assert "x: string" in out
        assert "…" not in out
        code, out, _ = await run(gateway, "list", columns=60)
        assert code == 0
        assert "厨房" * 40 in out


def test_the_version_is_said_as_all_commands_say_it() -> None:
    said = subprocess.run([COMMAND, "--version"], capture_output=True, check=True, timeout=PATIENCE_S).stdout
    assert re.fullmatch(rb"smcp-agent \d+\.\d+\.\d+\n", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["call", "red", "echo", "--params", "{x"], "--params"),
        (["call", "red", "echo", "--params", "[1]"], "--params"),
        (["call", "red", "echo", "--timeout", "0"], "--timeout"),
        (["call", "red", "echo", "--timeout", "soon"], "--timeout"),
        (["call", "red", "echo", "--timeout", "1.5"], "'1.5' is not in whole seconds from 1 to 3600"),
        (["call", "red"], "TOOL"),
        (["fly"], "fly"),
        ([], "Usage"),
        (["--office", "", "list"], "office"),
        (["--url", "nowhere", "list"], "url"),
        (["--name", "x" * 200, "list"], "name"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_what_is_wrong(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["--office", "office", "--url", "http://127.0.0.1:1", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


async def test_no_gateway_ends_with_1_and_says_what_to_do() -> None:
    async with fake_gateway() as gateway:
        url = gateway.url
    gateway = FakeGateway()
    code, out, err = await run(gateway, "--url", url, "list")
    assert (code, out) == (1, "")
    assert "Connection refused" in err
    assert "smcp up" in err


async def test_a_refused_join_ends_with_1_and_explains_that_there_is_one_agent_per_office() -> None:
    async with fake_gateway() as gateway:
        gateway.refusal = "an Agent is in the office"
        code, _, err = await run(gateway, "list")
        assert code == 1
        assert "an Agent is in the office" in err
        assert "one Agent per office" in err


async def test_a_join_that_cannot_be_decided_now_is_not_taken_for_another_agent() -> None:
    async with fake_gateway() as gateway:
        gateway.refusal = "503 no registry answered"
        code, _, err = await run(gateway, "list")
        assert code == 1
        assert "error 503" in err
        assert "no registry answered" in err
        assert "try again" in err
        assert "one Agent per office" not in err


@pytest.mark.parametrize("after", ["import typer", "import socketio", "import smcp_agent.cli.main"])
def test_ctrl_c_during_the_imports_ends_with_130_and_no_traceback(after: str) -> None:
    """The signal comes when that module has just been imported."""
    code = f"""
import os, signal, sys
from importlib.abc import MetaPathFinder

class Interrupt(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {after.removeprefix("import ")!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from smcp_agent_command import main
main()
"""
    process = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, check=False, timeout=PATIENCE_S)
    assert (process.returncode, process.stdout, process.stderr) == (130, b"", b"")


async def test_ctrl_c_while_it_connects_ends_with_130() -> None:
    async with fake_gateway() as gateway:
        gateway.answers["server:join_office"] = gateway.never
        process = await start(gateway, "list")
        await eventually(lambda: gateway.seen("server:join_office"), timeout=PATIENCE_S)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert (process.returncode, out, err) == (130, b"", b"cancelled\n")


@pytest.mark.parametrize(("told", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_ctrl_c_and_sigterm_cancel_the_call_and_end_with_the_code_of_a_shell(
    told: signal.Signals, code: int
) -> None:
    async with fake_gateway() as gateway:
        gateway.answers["client:tool_call"] = gateway.never
        process = await start(gateway, "call", "red", "slow")
        await eventually(lambda: gateway.seen("client:tool_call"), timeout=PATIENCE_S)
        process.send_signal(told)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert process.returncode == code
        assert (out, err.strip()) == (b"", b"cancelled")
        (call,) = gateway.seen("client:tool_call")
        cancel = {"agent": call["agent"], "req_id": call["req_id"]}
        assert gateway.seen("server:tool_call_cancel") == [cancel]
        assert len(gateway.seen("server:leave_office")) == 1


async def test_at_a_terminal_the_time_that_passes_is_shown_on_standard_error() -> None:
    async with fake_gateway() as gateway:
        ours, theirs = pty.openpty()
        try:
            process = await start(gateway, "call", "red", "echo", stderr=theirs)
            os.close(theirs)
            async with asyncio.timeout(PATIENCE_S):
                out, _ = await process.communicate()
            shown = os.read(ours, 65536).decode()
        finally:
            os.close(ours)
        assert out == b"echo\n"
        assert "echo on red" in shown
        assert "0:00:0" in shown
        assert "trace" in shown


async def test_two_runs_have_names_of_their_own() -> None:
    async with fake_gateway() as gateway:
        await run(gateway, "list")
        await run(gateway, "list")
        first, second = [data["name"] for data in gateway.seen("server:join_office")]
        assert first != second
