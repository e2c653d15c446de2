"""An MCP server's process: started in a process group of its own, and killed whole.

"Whole" means its group and all its descendants, also those that left the group: `uvx`, `npx` and shells start the
real server as a child.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Final

import psutil

from smcp_computer.mcp.errors import StartFailed

EXIT_GRACE_S: Final = 2.0
"""After its standard input closed, before SIGTERM."""
TERM_GRACE_S: Final = 2.0
"""After SIGTERM, before SIGKILL."""
HURRY_S: Final = 0.5
REAP_S: Final = 2.0
POLL_S: Final = 0.02
READ_LIMIT: Final = 256 * 1024


class ServerProcess:
    """One run of a program; made by `start`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.stderr = process.stderr

    @classmethod
    async def start(
        cls, command: str, arguments: Sequence[str], *, env: Mapping[str, str], cwd: str | None
    ) -> "ServerProcess":
        """Start a program without a shell.

        Raises:
            StartFailed: it does not exist or cannot be run.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *arguments,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=dict(env),
                cwd=cwd,
                limit=READ_LIMIT,
                start_new_session=True,
            )
        except FileNotFoundError:
            if cwd is not None and not os.path.isdir(cwd):  # noqa: ASYNC240, PTH112 -- one stat on a failure
                raise StartFailed(f"its working directory {cwd!r} does not exist") from None
            raise StartFailed(f"its command {command!r} does not exist") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable command"
            raise StartFailed(f"its command {command!r} cannot be started: {reason}") from None
        return cls(process)

    @property
    def pid(self) -> int:
        """Also the id of its process group."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    async def wait_exited(self) -> None:
        """Return when the process itself has ended, also where a child of it holds its pipes open."""
        while self._process.returncode is None:  # noqa: ASYNC110 -- waiting on a Process waits for its pipes, too
            await asyncio.sleep(0.25)

    async def stop(self, *, hurry: bool = False) -> None:
        """Close its input, give it time, then end its whole family. Bounded, idempotent, never raises.

        Args:
            hurry: it has nothing to finish: SIGTERM at once, and little time after it.
        """
        family = await asyncio.to_thread(_descendants, self.pid)
        if not self.stdin.is_closing():
            self.stdin.close()
        if not await self._gone_within(0.0 if hurry else EXIT_GRACE_S):
            _signal_group(self.pid, signal.SIGTERM)
            if not await self._gone_within(HURRY_S if hurry else TERM_GRACE_S):
                _signal_group(self.pid, signal.SIGKILL)
                await self._gone_within(REAP_S)
        _kill(family)
        self._close_transport()

    def kill(self) -> None:
        """End the whole group now."""
        _signal_group(self.pid, signal.SIGKILL)

    async def _gone_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._process.returncode is None or _group_lives(self.pid):
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _close_transport(self) -> None:
        # it stays open, and warns when collected, while a survivor holds a pipe; nothing public gives it
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()


def kill_all() -> None:
    """End all that this process has started, and what that started in turn: for a process that ends at once."""
    _kill(_descendants(os.getpid()))


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _kill(family: list[psutil.Process]) -> None:
    for process in family:
        with contextlib.suppress(psutil.Error):  # psutil compares the start time: a reused pid is not killed
            process.kill()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
