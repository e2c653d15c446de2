"""A small program beside a Computer: it starts MCP servers, and ends whatever they leave behind.

    python -I -S reaper.py FD CGROUP

Over the socket FD the Computer sends, for each server, four descriptors: a socket for this one server, and the server's
standard streams. For each server the program forks a keeper. A keeper is the subreaper of its server: processes that
detach themselves become its children, so the kernel knows them all. Once the server ended, or the Computer closed its
end of the socket (or was killed), the keeper ends the whole family, then itself. CGROUP is a directory of cgroup v2,
or empty: each server gets a cgroup below it, which the kernel ends at once, also where a family forks faster than it is
looked at.

From the Computer comes one line of JSON (see `process`), then nothing until the end. To it go lines: `started PID`, or
`failed WHAT ERRNO`; later `ended STATUS`. The socket is closed once no process of the server is left.

It imports little, and keepers touch little of what they inherit: each server costs about half a megabyte.
"""

import ctypes
import gc
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn

GRACE_S: Final = 2.0
"""After its standard input closed, before SIGTERM; after that, before SIGKILL; and after that: what the kernel has not
ended by then (it waits for a disk) is left behind."""
POLL_S: Final = 0.05
"""How often it is looked, and killed again, while a family is ended: one that forks may be missed by one look."""
_STREAMS: Final = 3
_LINUX: Final = sys.platform == "linux"
_SET_CHILD_SUBREAPER: Final = 36
_SET_NO_NEW_PRIVS: Final = 38
_SET_DUMPABLE: Final = 4
_libc: Final = ctypes.CDLL(None)
_HANDLED: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    wakeups = _prepare()
    listened: list[Any] = [control, wakeups]
    keepers: dict[int, str] = {}
    """The cgroup of its server, by the keeper's process."""
    left: list[str] = []
    """Cgroups of keepers that have ended."""
    gc.disable()
    gc.freeze()
    while control in listened or _has_children():
        ready, _, _ = select.select(listened, [], [])
        if wakeups in ready:
            os.read(wakeups, 4096)
            left += [keepers.pop(pid) for pid, _ in _ended() if pid in keepers]
            left = [group for group in left if not _end_group(group)]
            _kill(signal.SIGKILL, beside=keepers)  # what a keeper left that was killed itself
        if control in ready:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1 + _STREAMS)
            if not descriptors:
                listened.remove(control)  # the Computer has ended, or wants no more servers
                continue
            group = f"{sys.argv[2]}/smcp-{os.urandom(8).hex()}" if sys.argv[2] else ""
            if (pid := os.fork()) == 0:
                try:
                    control.close()
                    _keep(group, *descriptors)
                finally:
                    os._exit(1)
            keepers[pid] = group
            for descriptor in descriptors:
                os.close(descriptor)
    os._exit(0)


def hide_memory() -> None:
    """Let no other process of this user read the memory and the environment of this one, on Linux. A program that it
    runs is not hidden. Root can read it, so debuggers need root."""
    if _LINUX:
        _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _prepare() -> int:
    """Adopt orphans, and do not end by signals; gives a descriptor that becomes readable with each of them."""
    hide_memory()  # it has been given the environments of all servers
    if _LINUX:
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in _HANDLED:  # not SIG_IGN, which servers would inherit
        signal.signal(number, lambda *_: None)
    return readable


def _keep(group: str, for_server: int, *streams: int) -> NoReturn:
    control = socket.socket(fileno=for_server)
    wakeups = _prepare()
    server = _start(control, group, streams)
    listened: list[Any] = [control, wakeups]
    kill_at = math.inf
    while True:
        ready, _, _ = select.select(listened, [], [], None if kill_at == math.inf else POLL_S)
        if wakeups in ready:
            os.read(wakeups, 4096)
        if control in ready:
            listened.remove(control)  # the Computer closed its end
            kill_at = min(kill_at, time.monotonic() + GRACE_S)
            _kill(signal.SIGTERM)
        for pid, status in _ended():
            if pid == server:
                kill_at = 0
                _send(control, b"ended %d\n" % status)
                if not _LINUX:  # without a subreaper only the group tells who belonged to it
                    os.killpg(server, signal.SIGKILL)
        if time.monotonic() >= kill_at:
            _end_group(group)
            _kill(signal.SIGKILL)
        if not _has_children():
            _end_group(group)
            os._exit(0)


def _start(control: socket.socket, group: str, streams: tuple[int, ...]) -> int:
    report, reported = os.pipe()
    for descriptor in (control.fileno(), *streams):
        os.set_inheritable(descriptor, False)
    if (server := os.fork()) == 0:
        _become_server(control, group, streams, reported)
    for descriptor in (*streams, reported):
        os.close(descriptor)
    failure = os.read(report, 100)  # nothing, once the server's program runs
    os.close(report)
    _send(control, failure or b"started %d\n" % server)
    return server


def _become_server(control: socket.socket, group: str, streams: tuple[int, ...], reported: int) -> NoReturn:
    step = "request"
    try:
        with control.makefile("rb") as lines:
            request = json.loads(lines.readline())
        os.setsid()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        step = "cgroup"
        _enter_group(group, request["cgroup"])
        step = "limits"
        for limit, value in request["limits"]:
            resource.setrlimit(limit, value)
        step = "user"
        if request["user"] is not None:
            uid, gid, groups = request["user"]
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
        if _LINUX and request["no_new_privileges"]:
            _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        step = "directory"
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        step = "command"
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would keep that
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(request["command"][0], request["command"], request["env"])
    except BaseException as error:  # noqa: BLE001 -- every failure is reported
        os.write(reported, b"failed %s %d\n" % (step.encode(), getattr(error, "errno", None) or 0))
    finally:
        os._exit(127)


def _enter_group(group: str, limits: list[tuple[str, str]]) -> None:
    try:
        os.mkdir(group)
        for file, value in limits:
            _write(f"{group}/{file}", value)
        _write(f"{group}/cgroup.procs", "0")
    except OSError:
        if limits:
            raise


def _end_group(group: str) -> bool:
    """Kill what is in it, and remove it. Returns whether there is none."""
    if not os.path.exists(group):
        return True
    with suppress(OSError):
        _write(f"{group}/cgroup.kill", "1")
    for directory, _, _ in os.walk(group, topdown=False):  # a server may have made others in its own
        with suppress(OSError):
            os.rmdir(directory)
    return not os.path.exists(group)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _send(control: socket.socket, line: bytes) -> None:
    with suppress(OSError):  # the Computer has ended
        control.sendall(line)


def _ended() -> Iterator[tuple[int, int]]:
    """The children that have ended, with their exit codes; negative: by which signal."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill(number: signal.Signals, beside: Collection[int] = ()) -> None:
    """Signal all descendants but those in and below `beside`.

    A process that forks meanwhile may be missed. It is found by the next round: the end of each one is such a round.
    """
    parents = [os.getpid()]
    children = _children()
    while parents:
        for pid in children.get(parents.pop(), ()):
            if pid not in beside:
                parents.append(pid)
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    if not _LINUX:
        for line in os.popen("/bin/ps -axo ppid=,pid="):  # noqa: S605 -- nothing in it comes from anybody
            parent, pid = map(int, line.split())
            found.setdefault(parent, []).append(pid)
        return found
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{entry}/stat", "rb") as stat:
            parent = int(stat.read().rpartition(b")")[2].split()[1])  # before it stands a name, which may be anything
            found.setdefault(parent, []).append(int(entry))
    return found


if __name__ == "__main__":
    main()
