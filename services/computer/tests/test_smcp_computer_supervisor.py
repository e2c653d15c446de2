"""MCP servers as real processes: started, called, cancelled, killed, started again, stopped whole."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.call_span import CallSpan
from smcp_computer.mcp.environment import network_variables
from smcp_computer.mcp.errors import BadAnswer, CallRefused, ServerDied, ServerNotRunning
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.supervisor import Limits, State, Supervisor
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

Kind = Literal["streamable", "sse"]


@asynccontextmanager
async def running(
    *, limits: Limits | None = None, environ: dict[str, str] | None = None, **servers: dict[str, Any]
) -> AsyncIterator[dict[str, Supervisor]]:
    config = parse_config(json.dumps({"servers": servers}))
    fleet = Fleet(
        config.servers.values(),
        InputResolver(config.inputs, environ or {}),
        limits=limits or Limits(),
        on_change=lambda: None,
    )
    async with background() as tasks:
        task = tasks.start(fleet.run(), name="fleet")
        await asyncio.wait_for(fleet.wait_settled(), 35)
        try:
            yield dict(fleet.supervisors)
        finally:
            fleet.stop()
            await asyncio.wait_for(task, 15)


async def call(supervisor: Supervisor, tool: str, timeout: float = 20.0, **arguments: Any) -> dict[str, Any]:
    return await supervisor.call(tool, arguments, timeout=timeout, span=CallSpan({}))


def text(result: dict[str, Any]) -> str:
    found: str = result["content"][0]["text"]
    return found


async def pid_of(supervisor: Supervisor) -> int:
    return int(text(await call(supervisor, "pid")))


async def test_a_tool_gets_its_arguments_as_they_are_and_its_result_comes_back_as_it_is() -> None:
    async with running(box=configs.stdio()) as servers:
        value = {"none": None, "nested": {"list": [1, None]}, "读": "ü"}
        result = await call(servers["box"], "keys", value=value)
        assert result["structuredContent"] == value
        assert result["isError"] is False
        assert (await call(servers["box"], "with_meta"))["_meta"]["mine"] == 1


async def test_a_large_result_arrives_whole() -> None:
    async with running(box=configs.stdio()) as servers:
        assert len(text(await call(servers["box"], "big", size=20_000_000))) == 20_000_000


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


async def test_servers_start_side_by_side_and_one_that_cannot_disturbs_no_other() -> None:
    async with running(
        bad={"type": "stdio", "server_parameters": {"command": "no-such-program"}},
        nowhere={"type": "stdio", "server_parameters": {"command": sys.executable, "cwd": "/no/such/place"}},
        mute={"type": "stdio", "server_parameters": {"command": "cat", "args": ["/dev/null"]}},
        closed=configs.http("streamable", "http://127.0.0.1:1/mcp"),
        unset={"type": "stdio", "server_parameters": {"command": "x", "args": ["${env:NOT_SET}"]}},
        box=configs.stdio(),
    ) as servers:
        assert servers["box"].ready
        reasons = {name: servers[name].reason for name in servers if name != "box"}
        assert reasons["bad"] == "its command 'no-such-program' does not exist"
        assert reasons["nowhere"] == "its working directory '/no/such/place' does not exist"
        assert "NOT_SET" in reasons["unset"]
        assert "'unset'" in reasons["unset"]
        assert all(reasons.values())
        assert all(servers[name].state is State.FAILED for name in reasons)
        with pytest.raises(ServerNotRunning, match="'bad' is not running"):
            await call(servers["bad"], "echo", text="x")


async def test_a_server_that_never_answers_fails_its_start_in_time() -> None:
    silent = {"type": "stdio", "server_parameters": {"command": "sleep", "args": ["600"]}}
    async with running(limits=Limits(start_s=0.5), silent=silent) as servers:
        assert servers["silent"].reason == "did not get ready in time"


async def test_a_server_that_ends_at_a_question_before_the_handshake_gets_the_handshake(tmp_path: Path) -> None:
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
        await eventually(lambda: servers["picky"].ready, timeout=10)
        assert [tool.name for tool in servers["picky"].tools] == ["t"]
        with pytest.raises(BadAnswer, match="'picky' sent a result that is not valid"):
            await call(servers["picky"], "t")


async def test_a_killed_server_fails_its_calls_at_once_and_is_started_again() -> None:
    async with running(box=configs.stdio(fresh=True), other=configs.stdio()) as servers:
        box = servers["box"]
        first = await pid_of(box)
        pending = asyncio.create_task(call(box, "sleep", seconds=60))
        await call(box, "echo", text="the sleep has reached the server")
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ServerDied, match="'box'"):
            await asyncio.wait_for(pending, 2)
        await eventually(lambda: box.ready and box.starts == 2, timeout=15)
        assert await pid_of(box) != first
        assert servers["other"].starts == 1


async def test_a_server_that_keeps_dying_is_started_ever_more_slowly() -> None:
    crashing = {"type": "stdio", "server_parameters": {"command": "true"}}
    loop = asyncio.get_running_loop()
    async with running(crash=crashing) as servers:
        pauses = [servers["crash"]._backoff._step]
        began = loop.time()
        await eventually(lambda: servers["crash"]._backoff._step >= 2.0, timeout=15)
        assert pauses[0] <= 1.0
        assert loop.time() - began > 0.4


async def test_a_tool_that_ends_its_server_is_an_error_that_names_the_server() -> None:
    async with running(box=configs.stdio(fresh=True)) as servers:
        with pytest.raises(ServerDied, match="MCP server 'box' went away while the tool ran"):
            await call(servers["box"], "die")


async def test_a_tool_that_throws_is_a_result_of_the_server() -> None:
    async with running(box=configs.stdio()) as servers:
        assert (await call(servers["box"], "fail"))["isError"] is True


async def test_a_cancel_reaches_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running(box=configs.stdio(log=log)) as servers:
        pending = asyncio.create_task(call(servers["box"], "sleep", seconds=60, mark="m"))
        await eventually(lambda: log.exists() and "sleep m" in log.read_text())
        pending.cancel()
        await asyncio.wait([pending])
        await eventually(lambda: "cancelled m" in log.read_text())
        assert text(await call(servers["box"], "echo", text="lives")) == "lives"


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


@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_a_server_over_http_that_was_restarted_is_found_again(kind: Kind) -> None:
    async with configs.http_toolbox(kind) as toolbox, running(web=configs.http(kind, toolbox.url)) as servers:
        web = servers["web"]
        pending = asyncio.create_task(call(web, "sleep", seconds=60))
        await call(web, "echo", text="x")
        await toolbox.kill()
        with pytest.raises((ServerDied, CallRefused), match="'web'"):
            await asyncio.wait_for(pending, 15)
        await toolbox.start()
        await eventually(lambda: web.ready and web.starts >= 2, timeout=20)
        assert text(await call(web, "echo", text="again")) == "again"


async def test_stopping_ends_the_server_and_its_children() -> None:
    async with running(box=configs.stdio(fresh=True)) as servers:
        family = [await pid_of(servers["box"]), int(text(await call(servers["box"], "spawn")))]
        assert all(psutil.pid_exists(pid) for pid in family)
    assert not [pid for pid in family if psutil.pid_exists(pid) and _lives(pid)]


async def test_a_server_that_ignores_its_end_is_killed() -> None:
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['setsid', 'sleep', '600'])\n"
        "from smcp_testing.mcp_servers.toolbox import build\n"
        "build('stubborn', None).run('stdio')\n"
        "time.sleep(600)\n"
    )
    server = {"type": "stdio", "server_parameters": {"command": sys.executable, "args": ["-c", stubborn]}}
    async with running(stubborn=server) as servers:
        pid = await pid_of(servers["stubborn"])
        family = psutil.Process(pid).children(recursive=True)
        assert family
    assert not psutil.pid_exists(pid)
    await eventually(lambda: not any(_lives(child.pid) for child in family))


NEVER_READY = "import pathlib, sys, time\n{first}\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(600)\n"


@pytest.mark.parametrize("first", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
async def test_stopping_breaks_off_a_start_within_a_second(tmp_path: Path, first: str) -> None:
    marks = [tmp_path / "a", tmp_path / "b"]
    code = NEVER_READY.format(first=first)
    servers = {
        mark.name: {
            "type": "stdio",
            "server_parameters": {"command": sys.executable, "args": ["-c", code, str(mark)]},
        }
        for mark in marks
    }
    config = parse_config(json.dumps({"servers": servers}))
    fleet = Fleet(config.servers.values(), InputResolver({}, {}), limits=Limits(), on_change=lambda: None)
    running = asyncio.create_task(fleet.run())
    await eventually(lambda: all(mark.exists() for mark in marks), timeout=20)
    family = psutil.Process().children(recursive=True)
    loop = asyncio.get_running_loop()
    began = loop.time()
    fleet.stop()
    await asyncio.wait_for(running, 10)
    assert loop.time() - began < 5
    assert {server.state for server in fleet.supervisors.values()} == {State.STOPPED}
    starting = [child for child in family if child.is_running() and str(tmp_path) in " ".join(child.cmdline())]
    assert not [child for child in starting if _lives(child.pid)]


async def test_the_environment_of_a_server_is_the_default_one_and_what_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_COMPUTER", "s3cret")
    async with running(box=configs.stdio(env={"MINE": "${env:X}"}), environ={"X": "7"}) as servers:
        assert text(await call(servers["box"], "given", variable="MINE")) == "7"
        assert (await call(servers["box"], "given", variable="A_SECRET_OF_THE_COMPUTER"))["structuredContent"] == {
            "result": None
        }


NETWORK = {
    "HTTPS_PROXY": "http://proxy:3128",
    "no_proxy": "localhost",
    "SSL_CERT_FILE": "/ca.pem",
    "UV_DEFAULT_INDEX": "https://index.example/simple",
    "npm_config_registry": "https://npm.example",
}
SECRETS = {
    "HTTP_PROXY": "http://me:pass@proxy:3128",
    "PIP_INDEX_URL": "https://token@index.example/simple",
    "npm_config__authToken": "t",
    "UV_PUBLISH_TOKEN": "t",
    "MY_KEY": "k",
}


async def test_how_the_network_is_reached_is_passed_on_where_it_is_asked_for_and_secrets_never_are() -> None:
    passed = network_variables({**NETWORK, **SECRETS})
    assert passed == NETWORK
    mine = configs.stdio(env={"SSL_CERT_FILE": "/mine.pem"})
    async with running(limits=Limits(environment=passed), box=configs.stdio(), mine=mine) as servers:
        for name, value in NETWORK.items():
            assert text(await call(servers["box"], "given", variable=name)) == value
        assert text(await call(servers["mine"], "given", variable="SSL_CERT_FILE")) == "/mine.pem"


async def test_a_program_that_ends_without_what_it_may_have_needed_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    ends = {"type": "stdio", "server_parameters": {"command": "false", "env": {"SSL_CERT_FILE": "x"}}}
    async with running(limits=Limits(withheld=("HTTPS_PROXY", "SSL_CERT_FILE")), ends=ends):
        pass
    assert "it was not given HTTPS_PROXY, see SMCP_PASS_NETWORK_ENV" in caplog.text


async def test_lines_that_are_no_messages_are_skipped() -> None:
    noisy = (
        "print('hello, I am no JSON', flush=True)\n"
        "import sys; print('and I complain', file=sys.stderr, flush=True)\n"
        "from smcp_testing.mcp_servers.toolbox import build\n"
        "build('noisy', None).run('stdio')\n"
    )
    server = {"type": "stdio", "server_parameters": {"command": sys.executable, "args": ["-c", noisy]}}
    async with running(noisy=server) as servers:
        assert text(await call(servers["noisy"], "echo", text="hi")) == "hi"


async def test_a_tool_that_does_not_answer_times_out() -> None:
    async with running(box=configs.stdio()) as servers:
        with pytest.raises(TimeoutError):
            await call(servers["box"], "sleep", timeout=0.2, seconds=60)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
