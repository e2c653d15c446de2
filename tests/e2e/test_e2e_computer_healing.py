"""A Computer heals its MCP servers: processes that hang, crash and come back while they are called."""

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

from smcp_computer.mcp.errors import ServerDied, ServerNotRunning
from smcp_computer.mcp.events import State
from smcp_computer.mcp.transports import Limits
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import call, running, text
from smcp_testing.waiting import eventually

SILENCE_S = 6.0
"""Above what a healthy server needs for an answer on a busy machine."""
HEALED_S = 60.0
WAIT_S = 60.0


SIMPLE = """
import json, os, signal, sys, time
def ask_to_end(*_):
    write("asked to end")
    os._exit(0)
signal.signal(signal.SIGTERM, ask_to_end)
log, *unknown = sys.argv[1:]
def write(line):
    with open(log, "a") as file:
        file.write(line + chr(10))
def run(name, arguments):
    if name == "block":
        time.sleep(arguments["seconds"])
    elif name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    write("ran " + arguments.get("mark", name))
    return {"content": [{"type": "text", "text": name}]}
for line in sys.stdin:
    message = json.loads(line)
    method, answer = message["method"], {"jsonrpc": "2.0", "id": message.get("id")}
    write("asked " + method)
    if "id" not in message or method in unknown:
        continue
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "simple", "version": "1"}}
    elif method == "tools/list":
        names = ["block", "die", "append"]
        answer["result"] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    elif method == "tools/call":
        answer["result"] = run(message["params"]["name"], message["params"]["arguments"])
    elif method == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(answer), flush=True)
"""
"""A program that does one thing at a time, and starts at once also on a busy machine."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def simple(log: Path, *unknown: str) -> dict[str, Any]:
    """What it is asked and runs are lines of `log`. It says nothing to requests with an `unknown` method."""
    parameters = {"command": sys.executable, "args": ["-S", "-c", SIMPLE, str(log), *unknown]}
    return {"type": "stdio", "server_parameters": parameters}


@pytest.mark.rule("computer.safety.heartbeat", "computer.process.restart")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_server_that_was_stopped_is_found_and_started_again(era: Literal["2025", "2026"]) -> None:
    async with running(limits=Limits(silence_s=SILENCE_S), box=configs.lean(era, fresh=True)) as servers:
        box = servers["box"]
        stopped = box.status().pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        await eventually(lambda: box.ready and box.status().pid != stopped, timeout=HEALED_S)
        assert box.status().restarts == 1


async def test_a_call_on_a_server_that_was_stopped_ends_when_that_is_found(log: Path) -> None:
    async with running(limits=Limits(silence_s=SILENCE_S, wait_s=WAIT_S), box=simple(log)) as servers:
        box = servers["box"]
        pending = asyncio.create_task(call(box, "block", seconds=600, timeout=600))
        await eventually(lambda: "asked tools/call" in log.read_text())
        pid = box.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ServerDied):
            await asyncio.wait_for(pending, HEALED_S)
        assert text(await call(box, "append")) == "append"  # it waits for the next process


async def test_a_server_that_is_busy_with_a_call_is_spared_and_later_calls_wait_in_it(log: Path) -> None:
    async with running(limits=Limits(silence_s=2.0), box=simple(log)) as servers:
        box = servers["box"]
        busy = asyncio.create_task(call(box, "block", seconds=8, timeout=60))
        await eventually(lambda: box.state is State.DEGRADED)
        assert "has not answered for 2 s" in box.status().reason
        later = asyncio.create_task(call(box, "append", timeout=60))
        assert text(await busy) == "block"
        assert text(await later) == "append"
        await eventually(lambda: box.state is State.READY)
        assert (box.starts, box.reason) == (1, "")


async def test_a_server_that_is_still_silent_when_its_call_timed_out_is_killed_and_started_again(log: Path) -> None:
    async with running(limits=Limits(silence_s=2.0), box=simple(log)) as servers:
        box = servers["box"]
        with pytest.raises(TimeoutError):
            await call(box, "block", seconds=600, timeout=6)
        await eventually(lambda: box.ready and box.starts == 2, timeout=HEALED_S)
        assert "asked to end" not in log.read_text()


async def test_calls_wait_while_a_server_crashes_again_and_again(log: Path) -> None:
    async with running(limits=Limits(wait_s=WAIT_S), box=simple(log)) as servers:
        box = servers["box"]
        for _ in range(6):
            with pytest.raises(ServerDied):
                await call(box, "die", timeout=WAIT_S)
        assert text(await call(box, "append", timeout=WAIT_S)) == "append"
        assert box.starts == 7


async def test_without_a_wait_a_call_fails_at_once_with_the_reason(log: Path) -> None:
    async with running(limits=Limits(wait_s=0), box=simple(log)) as servers:
        box = servers["box"]
        with pytest.raises(ServerDied):
            await call(box, "die")
        await eventually(lambda: box.state is State.BACKOFF)
        with pytest.raises(ServerNotRunning, match=r"'box' is not running \(\w+\): went away"):
            await call(box, "append")


async def test_no_call_runs_twice_while_its_server_is_killed(log: Path) -> None:
    async with running(limits=Limits(wait_s=WAIT_S), box=simple(log)) as servers:
        box = servers["box"]
        outcomes: Counter[str] = Counter()

        async def caller(name: int) -> None:
            for number in range(40):
                try:
                    await call(box, "append", mark=f"{name}-{number}", timeout=WAIT_S)
                    outcomes["ran"] += 1
                except ServerDied:
                    outcomes["may have run"] += 1

        callers = [asyncio.create_task(caller(name)) for name in range(4)]
        for life in range(1, 4):
            await eventually(lambda: box.ready and box.starts == life, timeout=HEALED_S)  # noqa: B023 -- at once
            if (pid := box.status().pid) is not None:
                os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*callers)
        runs = Counter(line for line in log.read_text().splitlines() if line.startswith("ran "))
        assert max(runs.values()) == 1
        assert outcomes["ran"] <= len(runs) <= outcomes.total() == 160


async def test_a_server_that_knows_no_ping_is_asked_for_its_tools(log: Path) -> None:
    async with running(limits=Limits(silence_s=SILENCE_S), box=simple(log, "ping")) as servers:
        await eventually(lambda: log.read_text().count("asked tools/list") >= 4, timeout=HEALED_S)
        asked = log.read_text()
        assert (servers["box"].starts, asked.count("asked initialize"), asked.count("asked ping")) == (1, 1, 1)
