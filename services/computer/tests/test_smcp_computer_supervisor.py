"""MCP servers as real processes: started, called, cancelled, killed, started again, stopped whole."""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.client import Client

from smcp_computer.mcp.errors import BadAnswer, CallBrokenOff, RequestRefused, ServerDied, ServerNotRunning
from smcp_computer.mcp.events import State
from smcp_computer.mcp.transports import Limits
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import call, running, text
from smcp_testing.waiting import BOUND_S, eventually

Kind = Literal["streamable", "sse"]


@pytest.mark.rule(
    "events.tool_call.reply",
    "computer.{architecture.7,manager.call.arguments,call.5}",
    "answers.calls.result.unchanged",
)
async def test_arguments_and_results_of_a_tool_pass_unchanged() -> None:
    async with running(box=configs.stdio()) as servers:
        value = {"none": None, "nested": {"list": [1, None]}, "读": "ü"}
        result = await call(servers["box"], "keys", value=value)
        assert result["structuredContent"] == value
        assert result["isError"] is False
        assert (await call(servers["box"], "with_meta"))["_meta"]["mine"] == 1


@pytest.mark.rule(
    "data-structures.{MCPServerStreamableHttpParameters.url.meaning,MCPSSEParameters.url.meaning}",
    "data-structures.MCPServerConfig.streamable",
    "computer.{architecture.2.1,architecture.2.2,manager.type.sse,manager.type.http}",
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_servers_over_http(kind: Kind) -> None:
    async with configs.http_toolbox(kind) as toolbox, running(web=configs.http(kind, toolbox.url)) as servers:
        assert text(await call(servers["web"], "echo", text="hi")) == "hi"


async def test_a_large_result_over_http_arrives_whole() -> None:
    async with (
        configs.http_toolbox("streamable") as toolbox,
        running(web=configs.http("streamable", toolbox.url)) as servers,
    ):
        assert len(text(await call(servers["web"], "big", size=5_000_000))) == 5_000_000


@pytest.mark.rule(
    "data-structures.MCPServerStdioParameters.command.meaning", "computer.start.status", "answers.config.input.missing"
)
async def test_servers_start_in_parallel_whatever_another_one_does() -> None:
    async with running(
        ready=["box"],
        bad={"type": "stdio", "server_parameters": {"command": "no-such-program"}},
        nowhere={"type": "stdio", "server_parameters": {"command": sys.executable, "cwd": "/no/such/place"}},
        mute={"type": "stdio", "server_parameters": {"command": "cat", "args": ["/dev/null"]}},
        closed=configs.http("streamable", "http://127.0.0.1:1/mcp"),
        unset={"type": "stdio", "server_parameters": {"command": "x", "args": ["${env:NOT_SET}"]}},
        box=configs.stdio(),
    ) as servers:
        reasons = {name: servers[name].reason for name in servers if name != "box"}
        assert reasons["bad"] == "its command 'no-such-program' does not exist"
        assert reasons["nowhere"] == "its working directory '/no/such/place' does not exist"
        assert reasons["unset"].startswith("server_parameters.args.0: ${env:NOT_SET}: ")
        assert all(reasons.values())
        assert {name for name in reasons if servers[name].state is State.FAILED} == {"unset"}
        again = {servers[name].state for name in reasons if name != "unset"}
        assert again <= {State.BACKOFF, State.STARTING}
        with pytest.raises(ServerNotRunning, match=r"'bad' is not running \(\w+\): its command 'no-such-program'"):
            await call(servers["bad"], "echo", text="x")


async def test_a_server_that_needs_longer_than_the_first_start_may_take_gets_twice_the_time() -> None:
    toolbox = configs.stdio()["server_parameters"]
    command = shlex.join([toolbox["command"], *toolbox["args"]])
    slow = {
        "type": "stdio",
        "server_parameters": {**toolbox, "command": "sh", "args": ["-c", f"sleep 1; exec {command}"]},
    }
    async with running(limits=Limits(start_s=0.6), ready=(), slow=slow) as servers:
        assert servers["slow"].reason == "did not answer as an MCP server in time"
        await eventually(lambda: servers["slow"].ready, timeout=60)
        assert text(await call(servers["slow"], "echo", text="hi")) == "hi"


async def test_a_call_that_waits_brings_each_start_forward_until_one_succeeds(tmp_path: Path) -> None:
    toolbox = configs.stdio()["server_parameters"]
    starts, may_start = tmp_path / "starts", tmp_path / "may-start"
    command = shlex.join([toolbox["command"], *toolbox["args"]])
    script = f"echo >> {starts}; test -e {may_start} || exit 1; exec {command}"
    server = {"type": "stdio", "server_parameters": {**toolbox, "command": "sh", "args": ["-c", script]}}

    async def started(times: int) -> None:
        await eventually(lambda: starts.exists() and starts.stat().st_size >= times, timeout=60)

    async with running(limits=Limits(wait_s=60.0), ready=(), box=server) as servers:
        await started(6)
        waiting = asyncio.create_task(call(servers["box"], "echo", timeout=60, text="hi"))
        await started(7)
        async with asyncio.timeout(15):  # so long is the next pause at least that no call cuts short
            await started(8)
        may_start.touch()
        assert text(await waiting) == "hi"


async def test_a_server_that_ends_at_discovery_gets_the_legacy_handshake(tmp_path: Path) -> None:
    picky = tmp_path / "picky.py"
    picky.write_text(
        "import json, sys\n"
        "def say(message): print(json.dumps({'jsonrpc': '2.0', **message}), flush=True)\n"
        "first = json.loads(sys.stdin.readline())\n"
        "if first['method'] != 'initialize': sys.exit(1)\n"
        "say({'id': first['id'], 'result': {'protocolVersion': '2025-06-18', 'capabilities': {'tools': {}},"
        " 'serverInfo': {'name': 'picky', 'version': '1'}}})\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    if request['method'] == 'tools/list':\n"
        "        say({'id': request['id'], 'result': {'tools': [{'name': 't', 'inputSchema': {'type': 'object'}}]}})\n"
        "    elif request['method'] == 'tools/call':\n"
        "        say({'id': request['id'], 'result': {'content': 'not a list'}})\n"
    )
    server = {"type": "stdio", "server_parameters": {"command": sys.executable, "args": [str(picky)]}}
    async with running(picky=server) as servers:
        assert [tool.name for tool in servers["picky"].tools] == ["t"]
        with pytest.raises(BadAnswer, match="'picky' sent a result that is not valid"):
            await call(servers["picky"], "t")


async def test_calls_that_begin_while_others_are_broken_off_do_not_delay_the_end() -> None:
    async with running(box=configs.stdio(fresh=True)) as servers:
        calls = [asyncio.create_task(call(servers["box"], "sleep", timeout=3600, seconds=3600))]
        await eventually(lambda: servers["box"].running_calls == 1)
        ending = asyncio.create_task(servers["box"].end(0.0))
        async with asyncio.timeout(BOUND_S):
            while not all(each.done() for each in (ending, *calls)):
                if (
                    not ending.done() and len(calls) < 100
                ):  # one in each round of the loop: some fall between the breaking off and its effect
                    calls.append(asyncio.create_task(call(servers["box"], "sleep", timeout=3600, seconds=3600)))
                await asyncio.sleep(0)
        assert {type(each.exception()) for each in calls} == {CallBrokenOff, ServerNotRunning}


@pytest.mark.rule("answers.errors.tool")
async def test_an_exception_in_a_tool_is_a_failed_result() -> None:
    async with running(box=configs.stdio()) as servers:
        assert (await call(servers["box"], "fail"))["isError"] is True


@pytest.mark.rule("answers.calls.cancel.mcp")
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_a_cancel_reaches_a_server_over_http(tmp_path: Path, kind: Kind) -> None:
    log = tmp_path / "log"
    async with configs.http_toolbox(kind, log=log) as toolbox, running(web=configs.http(kind, toolbox.url)) as servers:
        pending = asyncio.create_task(call(servers["web"], "sleep", seconds=60, mark="m"))
        await eventually(lambda: log.exists() and "sleep m" in log.read_text())
        pending.cancel()
        await asyncio.wait([pending])
        await eventually(lambda: "cancelled m" in log.read_text())


@pytest.mark.parametrize("kind", ["stdio", "streamable", "sse"])
async def test_a_changed_list_of_tools_is_noticed(kind: str) -> None:
    async with configs.http_toolbox("sse" if kind == "sse" else "streamable") as toolbox:
        server = configs.stdio() if kind == "stdio" else configs.http(toolbox.kind, toolbox.url)
        async with running(box=server) as servers:
            box = servers["box"]
            await call(box, "add_tool", name="newcomer")
            await eventually(lambda: "newcomer" in {tool.name for tool in box.tools})
            await call(box, "remove_tool", name="newcomer")
            await eventually(lambda: "newcomer" not in {tool.name for tool in box.tools})


async def test_a_list_of_tools_that_changed_before_the_stream_of_changes_was_open_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listen, changed = Client.listen, asyncio.Event()

    @asynccontextmanager
    async def late(client: Client, **wanted: Any) -> AsyncIterator[Any]:
        await changed.wait()
        async with listen(client, **wanted) as events:
            yield events

    monkeypatch.setattr(Client, "listen", late)
    async with running(box=configs.stdio()) as servers:
        box = servers["box"]
        await call(box, "add_tool", name="newcomer")
        changed.set()
        await eventually(lambda: "newcomer" in {tool.name for tool in box.tools})


@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_a_restarted_http_server_is_connected_to_again(kind: Kind) -> None:
    async with configs.http_toolbox(kind) as toolbox, running(web=configs.http(kind, toolbox.url)) as servers:
        web = servers["web"]
        pending = asyncio.create_task(call(web, "sleep", seconds=60))
        await call(web, "echo", text="x")
        await toolbox.kill()
        with pytest.raises((ServerDied, RequestRefused), match="'web'"):
            await asyncio.wait_for(pending, 30)
        await toolbox.start()
        await eventually(lambda: web.ready and web.starts >= 2)
        assert text(await call(web, "echo", text="again")) == "again"


async def test_a_call_that_an_http_server_did_not_get_says_so() -> None:
    async with configs.http_raw("streamable") as raw, running(web=configs.http("streamable", raw.url)) as servers:
        await raw.kill()
        with pytest.raises(ServerNotRunning, match=r"^MCP server 'web' cannot be reached$"):
            await call(servers["web"], "say", text="x")
        await raw.start()
        await eventually(lambda: servers["web"].ready and servers["web"].starts == 2)
