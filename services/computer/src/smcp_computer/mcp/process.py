"""The process of an MCP server over stdio, with all that it starts: `reaper` runs it, and ends it whole.

Above is `stdio`, which speaks JSON-RPC over the streams. What the process may do is decided in `isolation`.
One reaper starts all servers of this process; it lives as long as any of them.
"""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

import psutil

from smcp_computer.config.lint import CannotRun
from smcp_computer.mcp import reaper
from smcp_computer.mcp.errors import ServerFailed
from smcp_service.lifecycle import pipe_end, set_within

READ_LIMIT: Final = 256 * 1024
HIERARCHIES: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where cgroup v2 is mounted: alone, and beside v1."""
_KILLED: Final = "the process that starts servers was killed"


@dataclass(frozen=True)
class Launch:
    """What is run, and how; `isolation` makes it."""

    command: Sequence[str]
    env: dict[str, str]
    cwd: str | None
    user: tuple[int, int, list[int]] | None = None
    """uid, gid, groups; None: the Computer's own."""
    limits: Sequence[tuple[int, tuple[int, int]]] = ()
    """A number of `resource.RLIMIT_…`, and its soft and hard limit."""
    no_new_privileges: bool = True
    cgroup: Sequence[tuple[str, str]] = ()
    """Files of its cgroup, and what is written there."""


@dataclass(eq=False)
class ServerProcess:
    """One run of a program."""

    _lines: asyncio.StreamReader
    _control: asyncio.StreamWriter
    stdin: asyncio.StreamWriter
    stderr: asyncio.StreamReader
    pid: int = 0
    """Of the program itself."""
    status: int | None = None
    """Its exit code, negative for a signal; None while it runs."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once nothing of it is left."""

    async def start(self, launch: Launch) -> None:
        """Raises ServerFailed, and CannotRun: this host does not let it have its user or limits."""
        self._control.write(json.dumps(asdict(launch)).encode() + b"\n")
        try:
            answer = (await self._lines.readline()).decode().split()
        except ConnectionError:
            raise ServerFailed(_KILLED) from None
        match answer:
            case ["started", pid]:
                self.pid = int(pid)
            case ["failed", "user" | "limits" | "cgroup" as setting, number]:
                raise CannotRun(f"{setting}: cannot be set on this host: {_reason(int(number))}")
            case ["failed", step, number]:
                raise ServerFailed(_failure(step, int(number), launch))
            case _:
                raise ServerFailed("its process ended before its program ran")

    async def watch(self) -> None:
        """Follow it until nothing of it is left."""
        while line := await self._lines.readline():
            self.status = int(line.split()[1])
        self.gone.set()

    def kill(self) -> None:
        """Kill its program; its keeper then kills the rest at once."""
        if self.status is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    async def stop(self, *, hurry: bool = False) -> None:
        """Close its input, give it time (none in a `hurry`), then end it whole; `watch` must be running. Idempotent."""
        self.stdin.close()
        if hurry or not await set_within(reaper.GRACE_S, self.gone):
            if self._control.can_write_eof():
                self._control.write_eof()
            await set_within(2 * reaper.GRACE_S, self.gone)


@asynccontextmanager
async def open_process(launch: Launch, stdout: asyncio.StreamReader) -> AsyncIterator[ServerProcess]:
    """Run a server's program; `stdout` gets its output. On leaving, what still runs of it is ended. Raises as
    `ServerProcess.start`."""
    async with AsyncExitStack() as stack:
        shared = await stack.enter_async_context(_Reaper.in_use())
        with ExitStack() as given:
            ours, theirs = socket.socketpair()
            given.enter_context(theirs)
            control = await asyncio.open_connection(sock=ours)
            stack.callback(control[1].close)
            stdin, their_stdin = await _writer(stack, given)
            stderr = asyncio.StreamReader(limit=READ_LIMIT)
            streams = [their_stdin, await _feed(stdout, stack, given), await _feed(stderr, stack, given)]
            shared.give([theirs.fileno(), *streams])
        process = ServerProcess(*control, stdin, stderr)
        await process.start(launch)
        yield process


async def _feed(reader: asyncio.StreamReader, stack: AsyncExitStack, given: ExitStack) -> int:
    ours, theirs = os.pipe()
    given.callback(os.close, theirs)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe_end(ours, "rb")
    )
    stack.callback(transport.close)
    return theirs


async def _writer(stack: AsyncExitStack, given: ExitStack) -> tuple[asyncio.StreamWriter, int]:
    theirs, ours = os.pipe()
    given.callback(os.close, theirs)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe_end(ours, "wb")
    )
    stack.callback(transport.close)
    return asyncio.StreamWriter(transport, protocol, None, loop), theirs


@cache
def own_cgroup() -> Path | None:
    """The cgroup (v2) below which this process may make others, one for each server. A cgroup is ended whole by one
    write, however fast its processes fork. Found once: `isolation` may move the process further down."""
    return find_cgroup(Path("/proc/self/cgroup"))


def find_cgroup(memberships: Path) -> Path | None:
    """The cgroup that `/proc/PID/cgroup` names, if this user may write there; None: it may not, or it is not Linux."""
    with suppress(OSError):
        for line in memberships.read_text("utf-8").splitlines():
            for place in [each / line.removeprefix("0::/") for each in HIERARCHIES if line.startswith("0::/")]:
                if os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK):
                    return place
    return None


class _Reaper:
    """The running program `reaper`, which all servers of this process use."""

    current: "ClassVar[_Reaper | None]" = None

    def __init__(self) -> None:
        self.users = 0
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 -- our own program
                [sys.executable, "-I", "-S", reaper.__file__, str(theirs.fileno()), str(own_cgroup() or "")],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},  # servers can read that of their parent
                start_new_session=True,
            )

    @classmethod
    @asynccontextmanager
    async def in_use(cls) -> "AsyncIterator[_Reaper]":
        if cls.current is None or cls.current.process.poll() is not None:
            cls.current = cls()
        used = cls.current
        used.users += 1
        try:
            yield used
        finally:
            used.users -= 1
            if not used.users:
                cls.current = None if cls.current is used else cls.current
                # `wait`: a cancelled one would not run if no thread is free yet
                await asyncio.wait([asyncio.get_running_loop().run_in_executor(None, used.close)])

    def give(self, descriptors: list[int]) -> None:
        """Raises ServerFailed: it has been killed."""
        try:
            socket.send_fds(self._control, [b"\0"], descriptors)
        except OSError:
            raise ServerFailed(_KILLED) from None

    def close(self) -> None:
        """Wait for its end, which comes when nothing is left of the servers that it started."""
        self._control.close()
        try:
            self.process.wait(2 * reaper.GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def kill_children() -> None:
    """For a process that ends at once. Of the MCP servers it kills the reaper alone: keepers end the servers."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            child.kill()


def usage_of(pid: int | None) -> tuple[float | None, int | None]:
    """CPU time (s) and memory (bytes) of a process and its descendants; of those that ended, as far as their parents
    waited for them. Pages that several of them share count several times. None: there is no such process."""
    cpu_s, memory, pids = 0.0, 0, [pid] if pid is not None else []
    while pids:
        with suppress(psutil.Error):
            process = psutil.Process(pids.pop())
            pids += _children(process)
            with process.oneshot():
                times = process.cpu_times()
                memory += process.memory_info().rss
            cpu_s += times.user + times.system + times.children_user + times.children_system
    return (cpu_s, memory) if memory else (None, None)


def _children(process: psutil.Process) -> list[int]:
    """psutil looks at all processes of the host for them, which takes ten times as long."""
    if sys.platform != "linux":
        return [child.pid for child in process.children()]
    pids: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            pids += map(int, (thread / "children").read_text().split())
    return pids


def is_stopped(pid: int | None) -> bool:
    """Whether a process was stopped (SIGSTOP), and cannot go on by itself."""
    with suppress(psutil.Error):
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _failure(step: str, number: int, launch: Launch) -> str:
    what = f"its command {launch.command[0]!r}" if step == "command" else f"its working directory {launch.cwd!r}"
    if number == errno.ENOENT:
        hint = "; write its arguments into args" if step == "command" and " " in launch.command[0] else ""
        return f"{what} does not exist{hint}"
    return f"{what} cannot be used: {_reason(number)}"


def _reason(number: int) -> str:
    return os.strerror(number) if number else "it is not valid"
