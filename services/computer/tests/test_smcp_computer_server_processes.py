"""The process of an MCP server: how it starts, what it inherits, and how it ends."""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import uvloop

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.errors import ServerDied
from smcp_computer.mcp.events import State
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.process import Launch, open_process
from smcp_computer.mcp.transports import Limits
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import call, pid_of, running, text
from smcp_testing.waiting import Stopwatch, eventually, within


async def _cancel_a_start(turns: int) -> None:
    """Cancel it after so many turns of the loop, and look whether files that are opened then stay open."""

    async def start() -> None:
        async with open_process(Launch(["cat"], {"PATH": os.defpath}, None), asyncio.StreamReader()):
            await asyncio.Event().wait()

    starting = asyncio.create_task(start())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.sleep(0)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]  # they get the numbers that have become free
    async with within(30):
        await asyncio.wait([starting])
    gc.collect()
    for each in opened:
        os.close(each)  # OSError: something else has closed it


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_start_that_is_cancelled_at_any_moment_closes_its_own_files_and_no_others(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_cancel_a_start(100))  # what a loop opens once is open then
        before = len(list(Path("/proc/self/fd").iterdir()))
        for turns in range(1, 20):
            runner.run(_cancel_a_start(turns))
        assert len(list(Path("/proc/self/fd").iterdir())) == before


async def _cancel_an_end(turns: int) -> None:
    before = set(psutil.Process().children())
    started, leaving = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with open_process(Launch(["true"], {"PATH": os.defpath}, None), asyncio.StreamReader()):
            started.set()
            await leaving.wait()

    running = asyncio.create_task(run())
    await started.wait()
    leaving.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    async with within(30):
        await asyncio.wait([running])
    await eventually(lambda: set(psutil.Process().children()) <= before)


async def test_nothing_is_left_of_a_server_whose_end_is_cancelled_at_any_moment() -> None:
    for turns in range(8):
        await _cancel_an_end(turns)


@pytest.mark.rule("computer.challenge.isolation", "computer.process.start", "computer.safety.crash")
async def test_a_killed_server_fails_its_calls_at_once_and_is_started_again() -> None:
    async with running(box=configs.stdio(fresh=True), other=configs.stdio()) as servers:
        box = servers["box"]
        first = await pid_of(box)
        pending = asyncio.create_task(call(box, "sleep", seconds=60))
        await call(box, "echo", text="the sleep has reached the server")
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ServerDied, match="'box'"):
            async with within(2):
                await pending
        await eventually(lambda: box.ready and box.starts == 2)
        assert await pid_of(box) != first
        assert servers["other"].starts == 1


async def test_the_pauses_before_restarts_of_a_dying_server_grow() -> None:
    crashing = {"type": "stdio", "server_parameters": {"command": "true"}}
    loop = asyncio.get_running_loop()
    async with running(ready=(), crash=crashing) as servers:
        pauses = [servers["crash"]._backoff._step]
        began = loop.time()
        await eventually(lambda: servers["crash"]._backoff._step >= 2.0)
        assert pauses[0] <= 1.0
        assert loop.time() - began > 0.4


@pytest.mark.rule("computer.main.stop", "computer.process.stop", "computer.safety.zombies")
async def test_stopping_ends_the_server_and_its_children() -> None:
    async with running(box=configs.stdio(fresh=True)) as servers:
        family = [await pid_of(servers["box"]), int(text(await call(servers["box"], "spawn")))]
        assert all(psutil.pid_exists(pid) for pid in family)
    assert not [pid for pid in family if psutil.pid_exists(pid) and _lives(pid)]


@pytest.mark.rule("computer.process.stop")
async def test_a_server_that_ignores_sigterm_is_killed() -> None:
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
async def test_stopping_breaks_off_a_start(tmp_path: Path, first: str) -> None:
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
    fleet = Fleet(config, InputResolver({}, {}), limits=Limits(), on_change=lambda: None)
    running = asyncio.create_task(fleet.run())
    await eventually(lambda: all(mark.exists() for mark in marks))
    family = psutil.Process().children(recursive=True)
    watch = Stopwatch()
    fleet.stop()
    await asyncio.wait_for(running, 30)
    assert watch.undisturbed < 5
    assert {server.state for server in fleet.supervisors.values()} == {State.STOPPED}
    starting = [child for child in family if child.is_running() and str(tmp_path) in " ".join(child.cmdline())]
    assert not [child for child in starting if _lives(child.pid)]


@pytest.mark.rule(
    "data-structures.MCPServerStdioParameters.env.meaning", "computer.instance.env", "answers.config.stdio.env"
)
async def test_the_environment_of_a_server_is_the_default_one_and_what_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_COMPUTER", "s3cret")
    async with running(box=configs.stdio(env={"MINE": "${env:X}"}), environ={"X": "7"}) as servers:
        assert text(await call(servers["box"], "given", variable="MINE")) == "7"
        assert (await call(servers["box"], "given", variable="A_SECRET_OF_THE_COMPUTER"))["structuredContent"] == {
            "result": None
        }


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
