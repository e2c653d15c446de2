"""Services with another process's credential, or one that nats-server refuses."""

import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smcp_standalone.nats_config_file import parse_model
from smcp_standalone.nats_server import NatsServer, open_nats_server
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually

BIN = Path(sys.executable).parent
MODEL = parse_model(
    "{offices: [lab, attic], listen: '127.0.0.1:-1',"
    " computers: [{credential: rack, office: lab, names: [pc]}, {credential: other, office: attic}]}"
)
PROGRAMS = {
    "registry-1": ["smcp-registry"],
    "gateway-1": ["smcp-gateway"],
    "rack": ["smcp-computer", "run", "--office", "lab", "--name", "pc", "--config"],
}


@asynccontextmanager
async def started(tmp_path: Path, command: str, credential: Path, url: str) -> AsyncIterator[ServiceProcess]:
    config = tmp_path / "computer.json"
    config.write_text('{"servers": {}}')
    program, *arguments = PROGRAMS[command]
    given = [*arguments, str(config)] if arguments else []
    env = {"SMCP_NATS_CREDS": str(credential), "SMCP_NATS_URL": url}
    if command == "gateway-1":
        env["SMCP_GATEWAY_PORT"] = "0"
    async with service_process(*born(BIN / program, *given, knows=COMMANDS), env=env) as process:
        yield process


def said(process: ServiceProcess) -> str:
    return "\n".join(f"{line['event']} {line.get('error', '')}" for line in process.log)


def changed(nats: NatsServer, tmp_path: Path, credential: str, **fields: object) -> Path:
    """A copy of a credential's file with other fields; None leaves a field out."""
    content = {**json.loads(nats.credentials[credential].read_text()), **fields}
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return path


@pytest.mark.parametrize("command", PROGRAMS)
async def test_a_refused_process_logs_it_once_and_uses_the_new_secret_of_its_file(tmp_path: Path, command: str) -> None:
    async with open_nats_server(MODEL, tmp_path / "nats") as nats:
        path = changed(nats, tmp_path, command, secret="no such secret")
        async with started(tmp_path, command, path, nats.url) as process:
            words = f"refuses the credential '{command}' of {path}; connecting again until it is taken"
            await eventually(lambda: words in said(process), timeout=30)
            changed(nats, tmp_path, command)
            await process.logged("connected to nats-server")
            assert len(re.findall(re.escape(words), said(process))) == 1
            process.signal(signal.SIGTERM)
            assert await process.exit_code() == 0


@pytest.mark.parametrize("command", PROGRAMS)
async def test_a_refused_process_stops_on_a_signal(tmp_path: Path, command: str) -> None:
    async with open_nats_server(MODEL, tmp_path / "nats") as nats:
        path = changed(nats, tmp_path, command, secret="no such secret")
        async with started(tmp_path, command, path, nats.url) as process:
            await eventually(lambda: "connecting again until it is taken" in said(process), timeout=30)
            process.signal(signal.SIGTERM)
            assert await process.exit_code() == 0
