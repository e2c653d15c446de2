"""The start of the commands: a taken port, and ctrl-C before they serve."""

import re
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from smcp_testing.fork_server import COMMANDS as FORKED
from smcp_testing.fork_server import born
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually

BIN = Path(sys.executable).parent
AWAY = {"SMCP_NATS_URL": "nats://127.0.0.1:1", "SMCP_LOG_FORMAT": "json"}
COMMANDS = {
    "smcp-registry": ["smcp-registry"],
    "smcp-gateway": ["smcp-gateway", "--port", "0"],
    "smcp-computer": ["smcp-computer", "run", "--office", "lab", "--name", "pc", "--config", "computer.json"],
    "smcp": ["smcp", "up", "--port", "0", "--config", "computer.json"],
}

NEVER_LOADED = """
import time
print("loading", flush=True)
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass  # as libraries do
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "computer.json").write_text('{"servers": {}}')
    monkeypatch.chdir(tmp_path)


def said(process: ServiceProcess) -> str:
    return "\n".join(f"{line['event']} {line.get('error', '')}" for line in process.log)


@pytest.mark.parametrize(
    ("command", "choose"),
    [
        ("smcp-registry", "SMCP_HEALTH_PORT"),
        ("smcp-computer", "SMCP_HEALTH_PORT"),
        ("smcp-gateway", "--port / SMCP_GATEWAY_PORT"),
        ("smcp", "--port / SMCP_GATEWAY_PORT"),
    ],
)
async def test_a_port_that_is_taken_is_named_with_what_chooses_another(command: str, choose: str) -> None:
    program, *arguments = COMMANDS[command]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = [str(port) if argument == "0" else argument for argument in arguments]
        env = {**AWAY, "SMCP_HEALTH_PORT": str(port)}
        async with service_process(*born(BIN / program, *arguments, knows=FORKED), env=env) as process:
            assert await process.exit_code(timeout=60) == 1
            last = f"error: port {port} of 127.0.0.1 is taken; choose another with {choose}"
            assert process.log[-1] == {"event": last}
            assert "Traceback" not in said(process)


@pytest.mark.parametrize("command", COMMANDS)
async def test_ctrl_c_while_it_is_loaded_ends_it_without_a_traceback(command: str, tmp_path: Path) -> None:
    program, *arguments = COMMANDS[command]
    (tmp_path / "structlog.py").write_text(NEVER_LOADED)  # which all of them import, before nearly everything else
    async with service_process(BIN / program, *arguments, env={**AWAY, "PYTHONPATH": str(tmp_path)}) as process:
        await eventually(lambda: process.output == ["loading"], timeout=60)
        process.signal(signal.SIGINT)
        assert await process.exit_code() == 130
        assert not process.log


@pytest.mark.parametrize("command", COMMANDS)
async def test_the_version_is_printed_without_loading_the_program(command: str, tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text(NEVER_LOADED)  # which all of them import
    async with service_process(BIN / command, "--version", env={"PYTHONPATH": str(tmp_path)}) as process:
        assert await process.exit_code() == 0
        assert re.fullmatch(rf"{command} \d+\.\d+\.\d+", "\n".join(process.output))


@pytest.mark.parametrize("command", ["smcp-registry", "smcp-gateway", "smcp-computer"])
async def test_ctrl_c_while_nats_is_awaited_ends_it_as_asked(command: str) -> None:
    program, *arguments = COMMANDS[command]
    with socket.create_server(("127.0.0.1", 0)) as mute, ExitStack() as connections:
        mute.setblocking(False)  # it takes connections, and says nothing
        url = f"nats://127.0.0.1:{mute.getsockname()[1]}"
        command_line = born(BIN / program, *arguments, knows=FORKED)
        async with service_process(*command_line, env={**AWAY, "SMCP_NATS_URL": url}) as process:
            await eventually(lambda: _has_come(mute, connections), timeout=60)
            process.signal(signal.SIGINT)
            assert await process.exit_code() == 0
            assert "Traceback" not in said(process)


async def test_ctrl_c_while_everything_starts_ends_it_as_asked() -> None:
    program, *arguments = COMMANDS["smcp"]
    async with service_process(BIN / program, *arguments, env={"SMCP_LOG_FORMAT": "json"}) as process:
        await eventually(lambda: process.output, timeout=60)
        assert "Starting" in process.output[0]
        process.signal(signal.SIGINT)
        assert await process.exit_code() == 0
        assert "Traceback" not in said(process)


def _has_come(server: socket.socket, connections: ExitStack) -> bool:
    try:
        connection, _ = server.accept()
    except BlockingIOError:
        return False
    connections.enter_context(connection)
    return True
