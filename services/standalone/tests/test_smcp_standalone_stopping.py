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
