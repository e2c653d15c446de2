"""The states of an MCP server, and what a Computer tells of it: to its user, to `/metrics`, and in part to Agents."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

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
    restarts: int
    """How many times it became ready again."""
    pid: int | None
    """None: it does not run, or is reached over HTTP."""
    cpu_s: float | None
    memory_bytes: int | None
    tools: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Of a process and all that descend from it."""

    cpu_s: float
    """Also of those that ended, as far as their parents waited for them."""
    memory_bytes: int
    """Pages that several of them share count several times."""


def usage_of(pids: Collection[int]) -> Mapping[int, Usage]:
    """What each process and its descendants use, by one look at all processes; one that has ended is left out."""
    if not pids:
        return {}
    children: dict[int, list[psutil.Process]] = {}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process)
        if process.pid in pids:
            found[process.pid] = process
    usage = {}
    for pid, root in found.items():
        cpu_s, memory, family = 0.0, 0, [root]
        while family:
            process = family.pop()
            family += children.get(process.pid, ())
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory += process.memory_info().rss
            except psutil.Error:
                continue
            cpu_s += times.user + times.system + times.children_user + times.children_system
        usage[pid] = Usage(cpu_s, memory)
    return usage
