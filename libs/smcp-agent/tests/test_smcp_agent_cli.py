import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from smcp_testing.agent_command import COMMAND, PATIENCE_S, at_a_terminal, ended, start
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.terminal_user import terminal_user
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]


async def run(gateway: FakeGateway, *arguments: str, columns: int = 120) -> tuple[int | None, str, str]:
    """Exit code, standard output, standard error."""
    code, out, err = await ended(await start(gateway, *arguments, columns=columns, forked=True))
    return code, out.decode(), err


async def test_list_shows_the_members_of_the_office() -> None:
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
        properties = {"a": {"type": "integer"}, "[b]": {}, "c": {"anyOf": [{"type": "null"}, {"type": "array"}]}}
        gateway.computers["red"] = [tool("add", "Adds [up].", properties=properties, required=["a"])]
        code, out, err = await run(gateway, "tools", "red")
        assert (code, err) == (0, "* has to be given.\n")
        assert "a*: integer" in out
        assert "c: array or null" in out
        assert "[b]" in out
        assert "Adds [up]." in out
        code, out, _ = await run(gateway, "tools", "red", "--json")
        assert code == 0
        assert json.loads(out) == {"computer": "red", "tools": gateway.computers["red"]}


async def test_call_prints_the_tools_text_or_the_result_as_json() -> None:
    async with fake_gateway() as gateway:
        arguments = ("call", "red", "echo", "--params", '{"x": [1]}', "--timeout", "9")
        code, out, err = await run(gateway, *arguments)
        assert (code, out) == (0, "echo\n")
        (req_id,) = [data["req_id"] for data in gateway.seen("client:tool_call")]
        assert re.fullmatch(rf"\d+\.\d{{3}} s; smcp trace {req_id}\n", err), "also where nobody looks at a terminal"
        (request,) = gateway.seen("client:tool_call")
        assert (request["params"], request["timeout"]) == ({"x": [1]}, 9)
        code, out, _ = await run(gateway, "--json", *arguments)
        assert code == 0
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
        assert "the call failed" in err


async def test_a_terminal_gets_no_control_characters_and_a_program_gets_them_all() -> None:
    nasty = "a\x07\x00b\x1b[31mc\x1b[0m\r\n\td\x9b1m\u061c\u200e\u200f\u202a\u202e\u2066\u2069e"
    kept_back = set(nasty) - set("abc[31m0\n\tde")
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo", nasty)]

        async def answer(data: JsonObject) -> Any:
            return {"content": [{"type": "text", "text": nasty}]}

        gateway.answers["client:tool_call"] = answer
        code, out, _ = await run(gateway, "call", "red", "echo")
        assert (code, out) == (0, f"a��bc\n\td{7 * '�'}e\n")
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


async def test_a_table_that_is_too_wide_for_the_terminal_becomes_lines_that_fit() -> None:
    async with fake_gateway() as gateway:
        name = "a_tool_with_a_name_of_some_length"
        gateway.computers["red"] = [tool(name, "Does " + "very " * 20 + "much.", properties={"x": {"type": "string"}})]
        _, shown, _ = await at_a_terminal(gateway, "tools", "red", columns=60)
        first, second, *others = shown.decode().splitlines()
        assert (first, second[:38]) == (name, "  Parameters: x: string   Description:")
        assert all(len(line) <= 60 for line in (second, *others))
        _, shown, _ = await at_a_terminal(gateway, "tools", "red", columns=100)
        assert re.match("┏[━┳]{98}┓\r\n", shown.decode())


def test_the_version_is_said_as_all_commands_say_it() -> None:
    said = subprocess.run([COMMAND, "--version"], capture_output=True, check=True, timeout=PATIENCE_S).stdout
    assert re.fullmatch(rb"smcp-agent \d+\.\d+\.\d+\n", said)


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


async def test_a_closed_standard_output_is_no_error() -> None:
    async with fake_gateway() as gateway:
        environment = {**os.environ, "SMCP_URL": gateway.url, "SMCP_OFFICE": "office"}
        closed = ("sh", "-c", '"$0" "$@" >&-', str(COMMAND), "list")
        process = await asyncio.create_subprocess_exec(*closed, env=environment, stderr=subprocess.PIPE)
        assert (await ended(process))[0] == 0


async def test_ctrl_c_while_it_connects_ends_with_130() -> None:
    async with fake_gateway() as gateway:
        gateway.answers["server:join_office"] = gateway.never
        process = await start(gateway, "list")
        await eventually(lambda: gateway.seen("server:join_office"), timeout=PATIENCE_S)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert (process.returncode, out, err) == (130, b"", b"cancelled\n")


@pytest.mark.parametrize(("told", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_ctrl_c_sigterm_and_sighup_cancel_the_call_and_end_with_the_code_of_a_shell(
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
    async with fake_gateway() as gateway, terminal_user() as user:
        process = await start(gateway, "call", "red", "echo", stderr=user.device, forked=True)
        async with asyncio.timeout(PATIENCE_S):
            out, _ = await process.communicate()
        assert out == b"echo\n"
        await eventually(lambda: all(text in user.shown for text in ("echo on red", "0:00:0", "trace")))


async def test_two_runs_have_different_names() -> None:
    async with fake_gateway() as gateway:
        await run(gateway, "list")
        await run(gateway, "list")
        first, second = [data["name"] for data in gateway.seen("server:join_office")]
        assert first != second
