"""The embedded nats-server: it starts on a free port, ends with its parent, and says why it does not start."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from smcp_service.lifecycle import Failure
from smcp_standalone.nats_config_file import NatsModel
from smcp_standalone.nats_server import open_nats_server
from smcp_testing.waiting import eventually

MODEL = NatsModel(offices=["lab"], listen="127.0.0.1:-1")

PARENT = """
import asyncio, sys
from pathlib import Path
from smcp_standalone.nats_config_file import NatsModel
from smcp_service.lifecycle import Failure
from smcp_standalone.nats_server import open_nats_server

async def main():
    model = NatsModel(offices=["lab"], listen="127.0.0.1:-1")
    async with open_nats_server(model, Path(sys.argv[1])) as server:
        print(server.process.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_embedded_server_listens_on_loopback_and_ends_with_the_block(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server:
        assert server.url.startswith("nats://127.0.0.1:")
        listening = {c.laddr.ip for c in psutil.Process(server.process.pid).net_connections() if c.status == "LISTEN"}
        assert listening == {"127.0.0.1"}
    assert server.process.returncode is not None


async def test_two_embedded_servers_are_independent(tmp_path: Path) -> None:
    async with (
        open_nats_server(MODEL, tmp_path / "a") as first,
        open_nats_server(MODEL, tmp_path / "b") as second,
    ):
        assert first.url != second.url
        assert first.credentials["gateway-1"].read_text() != second.credentials["gateway-1"].read_text()


async def test_a_taken_port_is_reported(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path / "a") as server:
        taken = MODEL.model_copy(update={"listen": server.url.removeprefix("nats://")})
        with pytest.raises(Failure, match="address already in use"):
            async with open_nats_server(taken, tmp_path / "b"):
                pass


async def test_an_unexpected_end_of_the_server_is_reported(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server:
        server.process.kill()
        with pytest.raises(Failure, match="ended with -9"):
            await asyncio.wait_for(server.wait_for_end(), 30)


async def test_a_suspended_server_is_stopped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_standalone.nats_server._STOP_S", 0.2)
    async with open_nats_server(MODEL, tmp_path) as server:
        server.process.send_signal(signal.SIGSTOP)
    assert server.process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = psutil.Process(int(await asyncio.wait_for(parent.stdout.readline(), 20)))
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
