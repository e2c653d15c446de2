"""Starts programs quickly: a process that has imported what they need, and forks.

    python -m smcp_testing.fork_server SOCKET MODULE [MODULE ...]

A fresh Python computes for a second or two until it has imported the MCP SDK, or one of our services, and the tests
start hundreds of such programs. What is forked here is a process of its own, with the arguments, environment, directory
and standard streams of the process that asks (`fork_client`). It gets each SIGTERM and SIGINT that the asking process
gets, and is killed when that one is gone. All are killed when the fork server's own standard input ends.

Not for tests of how a program starts, of other signals that it gets, or of what becomes of its children.
"""

import atexit
import contextlib
import ctypes
import gc
import marshal
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, ClassVar, Final, NoReturn

from smcp_testing import fork_client
from smcp_testing.fork_client import HEADER, NUMBER, STREAMS

MODULE: Final = "smcp_testing.fork_server"
COMMANDS: Final = (
    "anyio._backends._asyncio",
    "jsonschema_rs",
    "mcp.server.mcpserver",
    "rich.console",
    "rich.logging",
    "smcp_agent.cli.main",
    "smcp_agent.mcp.bridge",
    "smcp_computer.app",
    "smcp_computer.gateway",
    "smcp_computer.main",
    "smcp_gateway.main",
    "smcp_mcp.main",
    "smcp_registry.main",
    "smcp_standalone.app",
    "smcp_standalone.main",
    "smcp_standalone.trace_command",
    "smcp_testing.mcp_servers.context",
    "smcp_testing.mcp_servers.http_door",
    "smcp_testing.mcp_servers.toolbox_tools",
    "typer.rich_utils",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""What our own commands and the MCP servers of the tests import: one fork server has started once for all of them."""
GIVE_BACK: Final = signal.SIGUSR2
"""At this signal what was forked collects its garbage and gives freed memory back: what it has then is in use."""
SHARED: Final = "FORK_SERVER_OF_TESTS"
"""The variable in which the workers of pytest-xdist find the fork server that was started for all of them."""
_WISH_S: Final = 30.0
_END_S: Final = 30.0


def born(
    target: str | Path,
    *arguments: str | Path,
    knows: tuple[str, ...],
    python: str = sys.executable,
    imported_with: tuple[tuple[str, str], ...] = (),
) -> list[str]:
    """The command of a program whose process is forked.

    Args:
        target: the name of a module, or the path of a script.
        knows: modules that have been imported when it begins.
        python: an interpreter, maybe of another environment; of that one are the modules.
        imported_with: variables of the environment, for what looks at them when it is imported.
    """
    server = _server_of(python, knows, imported_with)
    return [python, "-I", "-S", fork_client.__file__, str(server), str(target), *map(str, arguments)]


class Forked:
    """A program whose process is forked for this one. It has what tests use of `subprocess.Popen`, and gets all
    signals, as no process stands for it. It is killed when this process is gone.

    Args:
        command: an installed command of ours, and its arguments.
        log: where its output goes, and what it says of errors.
    """

    living: ClassVar[set[int]] = set()
    """The ids of those whose end is not known yet."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> None:
        self._server = fork_client.reach(str(_server_of(sys.executable, COMMANDS, ())))
        with Path(os.devnull).open("rb") as nothing:
            fork_client.ask(self._server, command, env, [nothing.fileno(), log.fileno(), log.fileno()])
        self.pid = fork_client.told(self._server)
        self.living.add(self.pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or the negative number of a signal; None while it runs."""
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self.returncode = fork_client.told(self._server, socket.MSG_DONTWAIT)
                self._server.close()
                self.living.discard(self.pid)
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the fork server has not told it yet
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def share() -> None:
    """Start one fork server for this process and all that it starts: each worker's own would take two seconds of
    processor time."""
    os.environ[SHARED] = str(_server_of(sys.executable, COMMANDS, ()))


@cache
def _server_of(python: str, knows: tuple[str, ...], imported_with: tuple[tuple[str, str], ...]) -> Path:
    """Where the fork server is asked; it is started at the first call, and ends with this process."""
    if SHARED in os.environ and (python, knows, imported_with) == (sys.executable, COMMANDS, ()):
        return Path(os.environ[SHARED])
    path = Path(tempfile.mkdtemp(prefix="fork-server-")) / "socket"
    support = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        [python, "-m", MODULE, str(path), *knows],
        env={**os.environ, **dict(imported_with), "PYTHONPATH": support},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(process.communicate, timeout=_END_S)
    return path


class ForkServer:
    """Args:
    listener: where it is asked.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._askers: dict[int, socket.socket] = {}
        """By the process that was forked for each."""
        self._deaths, self._bell = socket.socketpair()
        self._deaths.setblocking(False)
        self._bell.setblocking(False)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Until the standard input ends."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        for what in (sys.stdin, self._listener, self._deaths):
            self._selector.register(what, selectors.EVENT_READ)
        try:
            while self._turn():
                pass
        finally:
            for pid in self._askers:
                os.kill(pid, signal.SIGKILL)

    def _turn(self) -> bool:
        """See to what happened; whether it goes on after that."""
        for key, _ in self._selector.select():
            if key.fileobj is sys.stdin:
                return False
            if key.fileobj is self._listener:
                asker, _ = self._listener.accept()
                try:
                    self._bear(asker)
                except OSError:  # it was killed, or says nothing, or there can be no more processes now
                    traceback.print_exc()
                    asker.close()
            elif key.fileobj is self._deaths:
                self._bury()
            elif key.data in self._askers:
                self._hear(key.data)
        return True

    def _hear(self, pid: int) -> None:
        """Who asked for a process has something to say of it, or is gone."""
        asker = self._askers[pid]
        try:
            told = asker.recv(64)
        except ConnectionResetError:
            told = b""
        if told:
            for number in told:
                os.kill(pid, number)
        else:
            self._selector.unregister(asker)
            os.kill(pid, signal.SIGKILL)

    def _bear(self, asker: socket.socket) -> None:
        """Fork for who asks."""
        asker.settimeout(_WISH_S)
        header, streams, _, _ = socket.recv_fds(asker, HEADER.size, STREAMS)
        if len(header) < HEADER.size:
            asker.close()  # it was killed meanwhile
            return
        (size,), wish = HEADER.unpack(header), b""
        try:
            while len(wish) < size:
                part = asker.recv(size - len(wish))
                if not part:
                    raise ConnectionResetError("it was killed before it had said what it wants")
                wish += part
            pid = os.fork()
            if not pid:
                _live(wish, streams)
        finally:
            for stream in streams:
                os.close(stream)
        self._askers[pid] = asker
        self._selector.register(asker, selectors.EVENT_READ, pid)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is gone: `_hear` says so
            asker.sendall(NUMBER.pack(pid))

    def _bury(self) -> None:
        """Tell those whose process has ended how it ended."""
        with contextlib.suppress(BlockingIOError):
            self._deaths.recv(4096)
        for pid in list(self._askers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            asker = self._askers.pop(pid)
            if asker in self._selector.get_map():
                self._selector.unregister(asker)
            with asker, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                asker.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _live(wish: bytes, streams: list[int]) -> NoReturn:
    """Be the program that was asked for: nothing of the fork server runs on its way out."""
    code = 1
    try:
        _become(wish, streams)
        code = _run(wish)
        sys.stdout.flush()
    finally:
        os._exit(code)


def _become(wish: bytes, streams: list[int]) -> None:
    """Take the streams, the directory, the environment and the arguments."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(GIVE_BACK, _give_back)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    # The fork server's own are of another kind: what is a pipe, or a terminal, is found out when it is opened.
    sys.stdin = os.fdopen(0, closefd=False, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", closefd=False, encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", 1, closefd=False, encoding="utf-8", errors="backslashreplace")
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))  # what is the fork server's, and the others'
    _, arguments, environ, directory = marshal.loads(wish)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[1:] = arguments
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))


def _give_back(*_: object) -> None:
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc
        trim(0)


def _run(wish: bytes) -> int:
    """The exit code, as a Python of its own would give it."""
    target, *_ = marshal.loads(wish)
    try:
        if "/" in target:
            sys.argv[0] = target
            runpy.run_path(target, run_name="__main__")
        else:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or 0
    except BaseException:  # noqa: BLE001 -- as above
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    path = Path(sys.argv[1])
    for name in sys.argv[2:]:
        import_module(name)
    gc.freeze()  # what is there now is shared with all that are forked
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        try:
            ForkServer(listener).run()
        finally:
            shutil.rmtree(path.parent)


if __name__ == "__main__":
    main()
