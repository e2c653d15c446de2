"""`smcp-agent mcp` as MCP clients start it: a process with three pipes."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from smcp_agent.cli.main import app
from smcp_testing.agent_command import COMMAND, PATIENCE_S, Ended, ended, line
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.waiting import eventually

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@asynccontextmanager
async def started(gateway: FakeGateway, *options: str) -> AsyncIterator[Process]:
    environment = {**os.environ, "SMCP_URL": gateway.url, "SMCP_OFFICE": "office"}
    command = born(COMMAND, "mcp", *options, knows=COMMANDS)
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def say(process: Process, method: str, id_: int | None = None, **params: Any) -> None:
    assert process.stdin is not None
    message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id_ is None else {"id": id_})
    process.stdin.write(json.dumps(message).encode() + b"\n")
    await process.stdin.drain()


async def serving(process: Process) -> None:
    await say(process, "initialize", 1, **INITIALIZE)
    answer = json.loads(await line(process.stdout))
    assert (answer["id"], answer["result"]["serverInfo"]["name"]) == (1, "smcp-agent")
    assert answer["result"]["capabilities"]["tools"] == {"listChanged": True}
    await say(process, "notifications/initialized")
    await say(process, "ping", 2)
    assert json.loads(await line(process.stdout))["id"] == 2


async def hung_up(process: Process) -> Ended:
    assert process.stdin is not None
    process.stdin.close()
    return await ended(process)


async def test_it_leaves_the_office_when_the_client_hangs_up_and_standard_output_is_mcp_alone() -> None:
    async with fake_gateway() as gateway, started(gateway) as process:
        gateway.computers["red"] = [tool("echo")]
        await serving(process)
        await gateway.enter("blue", [tool("sing")])
        told = [json.loads(await line(process.stdout))["method"] for _ in range(3)]
        assert sorted(told) == [f"notifications/{what}/list_changed" for what in ("prompts", "resources", "tools")]
        await say(process, "tools/call", 3, name="sing", arguments={})
        assert json.loads(await line(process.stdout))["id"] == 3
        code, out, err = await hung_up(process)
        assert (code, out) == (0, b"")
        assert all(each.startswith("smcp-agent mcp: ") for each in err.splitlines())
        assert len(gateway.seen("server:leave_office")) == 1


async def test_a_call_may_take_an_hour() -> None:
    async with fake_gateway() as gateway, started(gateway) as process:
        gateway.computers["red"] = [tool("echo")]
        await serving(process)
        await say(process, "tools/call", 3, name="echo", arguments={})
        assert json.loads(await line(process.stdout))["id"] == 3
        assert gateway.seen("client:tool_call")[0]["timeout"] == 3600
        assert (await hung_up(process))[0] == 0


async def test_tools_are_listed_as_the_options_say() -> None:
    options = ("--tools", "search", "--max-tools", "2", "--always-list", "e*", "--always-list", "s*")
    async with fake_gateway() as gateway, started(gateway, *options) as process:
        gateway.computers["red"] = [tool(name) for name in ("echo", "edit", "sing", "walk")]
        await serving(process)
        await say(process, "tools/list", 3)
        listed = json.loads(await line(process.stdout))["result"]["tools"]
        assert [each["name"] for each in listed] == ["search_tools", "describe_tool", "call_tool", "echo", "edit"]
        assert (await hung_up(process))[0] == 0


async def test_results_are_cut_as_the_option_says() -> None:
    async with fake_gateway() as gateway, started(gateway, "--max-chars", "3") as process:
        gateway.computers["red"] = [tool("echo")]
        await serving(process)
        await say(process, "tools/call", 3, name="echo", arguments={})
        text, link = json.loads(await line(process.stdout))["result"]["content"]
        assert text["text"] == "ech"
        await say(process, "resources/read", 4, uri=link["uri"])
        (rest,) = json.loads(await line(process.stdout))["result"]["contents"]
        assert rest["text"] == "o"
        assert (await hung_up(process))[0] == 0


async def test_a_client_that_is_gone_ends_it_and_its_calls() -> None:
    async with fake_gateway() as gateway, started(gateway) as process:
        gateway.computers["red"] = [tool("sleep")]
        gateway.answers["client:tool_call"] = gateway.never
        await serving(process)
        await say(process, "tools/call", 3, name="sleep", arguments={})
        await eventually(lambda: gateway.seen("client:tool_call"))
        code, _, _ = await hung_up(process)
        assert code == 0
        assert len(gateway.seen("server:tool_call_cancel")) == 1


async def test_the_bridge_passes_over_lines_that_are_no_messages() -> None:
    async with fake_gateway() as gateway, started(gateway) as process:
        assert process.stdin is not None
        for text in (
            b"no JSON",
            b"\n\xff{}",
            b"[1]",
            b'{"jsonrpc": "2.0"}',
            b'{"jsonrpc": "2.0", "id": 9, "result": 5}',
        ):
            process.stdin.write(text + b"\n")
        await serving(process)
        await say(process, "tools/call", 3, name=5)
        assert json.loads(await line(process.stdout))["error"]["code"] == -32602
        await say(process, "tools/call", 4, name="a", arguments={"cut": "\ud83d"})
        assert "no tool 'a'" in await line(process.stdout)
        code, _, err = await hung_up(process)
        assert code == 0
        assert all(each.startswith("smcp-agent mcp: ") for each in err.splitlines())


async def test_sigterm_ends_it_while_standard_input_is_open() -> None:
    async with fake_gateway() as gateway, started(gateway) as process:
        await serving(process)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
        assert len(gateway.seen("server:leave_office")) == 1


async def test_an_office_that_has_an_agent_is_an_error_in_the_clients_log() -> None:
    async with fake_gateway() as gateway:
        gateway.refusal = "the office already has an Agent: 'ann@desk-7'"
        async with started(gateway, "--json") as process:
            code, out, err = await ended(process)
    assert (code, out) == (1, b"")
    assert "'ann@desk-7'" in err


async def test_a_token_file_is_read_before_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    async with fake_gateway() as gateway, started(gateway, "--token-file", str(file)) as process:
        await serving(process)
        file.write_text("second\n")
        gateway.cut()
        await eventually(lambda: len(gateway.auths) == 2)
        await hung_up(process)
    assert [each["token"] for each in gateway.auths] == ["first", "second"]


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--url", "foo", "400: url: 'foo' is not like http://host:port"),
        ("--office", "", "400: office_id: "),
        ("--name", "", "400: name: "),
        ("--token-file", "nofile", "503: --token-file nofile: cannot be read: No such file or directory"),
    ],
)
async def test_wrong_options_are_an_error_in_the_first_line(option: str, value: str, why: str) -> None:
    async with fake_gateway() as gateway, started(gateway, option, value) as process:
        code, out, err = await ended(process)
    assert (code, out) == (2, b"")
    assert err.splitlines()[0].startswith(f"error {why}")


def test_without_the_mcp_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("anyio", "mcp", "mcp_types"):
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "smcp_agent.mcp.bridge", raising=False)
    for arguments in ([], ["install", "cursor", "--print"]):
        result = CliRunner().invoke(app, ["mcp", *arguments])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.splitlines() == ["smcp-agent mcp needs the MCP SDK: pip install './libs/smcp-agent[mcp]'"]


def test_an_entry_has_the_name_that_was_given() -> None:
    given = ["--name", "bob"]
    plain, named = (CliRunner().invoke(app, ["mcp", "install", "cursor", "--print", *more]) for more in ([], given))
    [options, more] = (json.loads(each.stdout)["mcpServers"]["smcp"]["args"] for each in (plain, named))
    assert more == [*options, *given]
