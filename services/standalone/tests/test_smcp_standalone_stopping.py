"""The end of `smcp up` while something still runs."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from smcp_agent import SmcpAgent
from smcp_service.lifecycle import FAILED
from smcp_standalone.demo import until_stopped
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually

SMCP = Path(sys.executable).parent / "smcp"
WAITING = "waiting for 1 call (up to 60 s); ctrl-C again stops at once"


@pytest.fixture(autouse=True)
def _hang_ups_are_heard() -> Iterator[None]:
    """Under `nohup` they are ignored, by what is started here, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@asynccontextmanager
async def up_with_a_call(temporary: Path) -> AsyncIterator[ServiceProcess]:
    """`smcp up` with its temporary files in `temporary`, in the middle of a call."""
    log = temporary.with_name("toolbox.log")
    toolbox = {
        "type": "stdio",
        "server_parameters": {
            "command": sys.executable,
            "args": ["-m", "smcp_testing.mcp_servers.toolbox", "--log", str(log)],
        },
    }
    config = temporary.with_name("computer.json")
    config.write_text(json.dumps({"servers": {"toolbox": toolbox}}))
    log.unlink(missing_ok=True)
    temporary.mkdir(exist_ok=True)
    env = {"TMPDIR": str(temporary), "SMCP_CONFIRM": "allow"}
    async with service_process(SMCP, "up", "--port", "0", "--config", str(config), env=env) as process:

        def url() -> str:
            lines = (line.split() for line in process.output)
            return next((words[3] for words in lines if words[:3] == ["Agents", "connect", "to"]), "")

        async with SmcpAgent(await eventually(url, timeout=60), office="home", name="caller") as agent:
            await agent.call_tool("computer", "spawn")  # what does not end by itself, nor with its input
            call = asyncio.create_task(agent.call_tool("computer", "sleep", {"seconds": 50}))
            try:
                await eventually(log.exists, timeout=30)
                yield process
            finally:
                call.cancel()  # while there is somebody who hears it
                await asyncio.gather(call, return_exceptions=True)
                await process.kill()


def left(temporary: Path) -> list[str]:
    return [path.name for path in temporary.iterdir() if path.name.startswith("smcp-")]


async def test_ctrl_c_during_a_call_says_what_is_waited_for_and_a_second_one_ends_everything(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    async with up_with_a_call(temporary) as process:
        assert left(temporary)
        children = psutil.Process(process.pid).children(recursive=True)
        process.signal(signal.SIGINT)
        assert (await process.logged(WAITING, timeout=30))["level"] == "info"
        process.signal(signal.SIGINT)
        assert await process.exit_code() == 1
        if sys.platform == "linux":
            await eventually(lambda: not any(child.is_running() for child in children))


@pytest.mark.parametrize("impatient", [False, True])
async def test_ctrl_c_ends_the_demo_however_often(tmp_path: Path, impatient: bool) -> None:
    env = {"TMPDIR": str(tmp_path), "UV_OFFLINE": "1"}
    async with service_process(SMCP, "demo", "--repository", str(Path(__file__).parent), env=env) as process:

        def children() -> list[psutil.Process]:
            return psutil.Process(process.pid).children(recursive=True)

        await eventually(lambda: any("nats-server" in child.name() for child in children()), timeout=60)
        started = children()
        assert left(tmp_path)
        process.signal(signal.SIGINT)
        ended = asyncio.create_task(process.exit_code())
        while impatient and not ended.done():
            process.signal(signal.SIGINT)
            await asyncio.wait({ended}, timeout=0.05)
        assert await ended in ((1, -signal.SIGINT) if impatient else (1,))  # Python itself may hear the last one
        if sys.platform == "linux":
            await eventually(lambda: not any(child.is_running() for child in started))
        assert impatient or left(tmp_path) == []
        assert "Traceback" not in "\n".join(str(line) for line in process.log)


async def test_a_demo_that_is_stopped_has_failed_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    ended, stop = asyncio.Event(), asyncio.Event()

    async def demonstration() -> None:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(10):
        assert await until_stopped(stop, demonstration()) == FAILED
    assert ended.is_set()
    assert capsys.readouterr() == ("", "stopped before its end\n")
