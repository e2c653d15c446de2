"""A command of ours as a child process: its log lines, its signals, its exit code."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from smcp_testing import fork_client

_END_S = 60.0  # on a machine with a load of 20 for two processors a command took 38 s to start
_INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_STATE_HOME",
    "COVERAGE_PROCESS_START",
    "COVERAGE_PROCESS_CONFIG",
    "CI_RUN_ID",
)


class ServiceProcess:
    """A running command. Its standard error is read as log lines: JSON objects, or `{"event": text}` for other text."""

    def __init__(self, process: asyncio.subprocess.Process, *, forked: bool = False) -> None:
        self._process = process
        # What stands for a forked one (`fork_client`) has to outlive it: the port of that one may be wanted at once.
        self._kill = signal.SIGQUIT if forked else signal.SIGKILL
        self._changed = asyncio.Condition()
        self._readers = [
            asyncio.create_task(self._read(process.stderr, self._take_log)),
            asyncio.create_task(self._read(process.stdout, self._take_output)),
        ]
        self.log: list[dict[str, Any]] = []
        self.output: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it, if the process still runs."""
        # not by `send_signal`: that takes the exit code of a process that has just ended, and asyncio then says 255
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def logged(self, event: str, *, timeout: float = _END_S) -> dict[str, Any]:
        """The first line with this `event`, once it is there. Raises AssertionError when it does not come."""

        def found() -> dict[str, Any] | None:
            return next((line for line in self.log if line.get("event") == event), None)

        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: found() is not None or self._all_read())
        except TimeoutError:
            pass
        line = found()
        assert line is not None, f"no log line {event!r}; the log: {self.log}"
        return line

    async def exit_code(self, *, timeout: float = _END_S) -> int:
        """Wait until it has ended (and all that it wrote is read). Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            await asyncio.gather(*self._readers)
            return await self._process.wait()

    async def kill(self) -> None:
        """kill -9, if it still runs, and wait."""
        self.signal(self._kill)
        await self._process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _all_read(self) -> bool:
        return all(reader.done() for reader in self._readers)

    async def _read(self, stream: asyncio.StreamReader | None, take: Any) -> None:
        assert stream is not None
        while line := await stream.readline():
            async with self._changed:
                take(line)
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()

    def _take_log(self, line: bytes) -> None:
        try:
            read = orjson.loads(line)
        except orjson.JSONDecodeError:
            read = None
        self.log.append(read if isinstance(read, dict) else {"event": line.decode(errors="replace").rstrip("\n")})

    def _take_output(self, line: bytes) -> None:
        self.output.append(line.decode(errors="replace").rstrip("\n"))


@asynccontextmanager
async def service_process(*command: str | Path, env: Mapping[str, str] | None = None) -> AsyncIterator[ServiceProcess]:
    """Run `command` with a clean environment and `env`; what still runs when the body ends is killed."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *command, env=inherited | dict(env or {}), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        limit=64 * 1024 * 1024, start_new_session=True,
    )  # fmt: skip
    running = ServiceProcess(process, forked=fork_client.__file__ in command)
    try:
        yield running
    finally:
        await running.kill()
