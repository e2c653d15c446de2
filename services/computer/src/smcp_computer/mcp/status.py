"""The states of an MCP server, and what a Computer tells of it: to its user, to `/metrics`, and in part to Agents."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil


class State(StrEnum):
    STARTING = "starting"
    """It is started, for the first time or again, and does not answer yet."""
    READY = "ready"
    DEGRADED = "degraded"
    """It runs, and something is wrong with it: the reason says what."""
    BACKOFF = "backoff"
    """It ended or could not be started, and is started again after a pause."""
    STOPPED = "stopped"
    DISABLED = "disabled"
    FAILED = "failed"
    """It cannot run as it is configured, and is not tried again before that changes."""


@dataclass(frozen=True)
class ServerStatus:
    name: str
    state: State
    reason: str
    """Why it is not ready; empty where it is."""
    since: float
    """When it came into this state, in seconds since the epoch."""
    restarts: int = 0
    """How many times it became ready again."""
    pid: int | None = None
    """None: it does not run, or is reached over HTTP."""
    cpu_s: float | None = None
    memory_bytes: int | None = None
    tools: int = 0
    warnings: tuple[str, ...] = ()


def usage_of(pid: int | None) -> tuple[float | None, int | None]:
    """CPU time (s) and memory (bytes) of a process and its descendants; of those that ended, as far as their parents
    waited for them. Pages that several of them share count several times. None: there is no such process."""
    cpu_s, memory, pids, found = 0.0, 0, [pid] if pid is not None else [], False
    while pids:
        with suppress(psutil.Error):
            process = psutil.Process(pids.pop())
            pids += _children(process)
            with process.oneshot():
                times = process.cpu_times()
                memory += process.memory_info().rss
            cpu_s += times.user + times.system + times.children_user + times.children_system
            found = True
    return (cpu_s, memory) if found else (None, None)


def _children(process: psutil.Process) -> list[int]:
    """psutil looks at all processes of the host for them, which takes ten times as long."""
    if not sys.platform.startswith("linux"):
        return [child.pid for child in process.children()]
    pids: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            pids += map(int, (thread / "children").read_text().split())
    return pids


def is_stopped(pid: int | None) -> bool:
    """Whether a process was stopped (SIGSTOP), and cannot go on by itself."""
    try:
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
