"""Where this Computer may make cgroups (v2), and which limits they can hold: each stdio server gets one of its own.

`reaper` makes it, starts the server in it and ends it. A cgroup is ended whole by one write, however fast its processes
fork, and its limits hold for all of them together. Where none can be made, servers run without, and limits are refused.
"""

import errno
import os
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

from smcp_computer.config.lint import CannotRun
from smcp_computer.config.server_settings import CgroupLimits

OWN_PROCESSES: Final = "computer"
"""The cgroup that takes the Computer's own processes in: one that has processes cannot give limits to those below."""
ROUNDS: Final = 5
"""How often processes are moved there: one that is born meanwhile is missed by a round."""
CPU_PERIOD_US: Final = 100_000
"""The kernel's default."""


@cache
def own() -> Path | None:
    """The cgroup below which this process may make others. Found once: `share` moves the process further down."""
    try:
        return find(Path("/proc/self/mountinfo").read_text("utf-8"), Path("/proc/self/cgroup").read_text("utf-8"))
    except OSError:  # no Linux
        return None


def find(mounts: str, memberships: str) -> Path | None:
    """The same from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`."""
    for membership in memberships.splitlines():
        number, _, path = membership.split(":", 2)
        for mount in mounts.splitlines() if number == "0" else ():
            fields, _, kind = mount.partition(" - ")
            root, point = fields.split()[3:5]
            if kind.startswith("cgroup2 ") and PurePosixPath(path).is_relative_to(root) and ".." not in path:
                place = Path(point) / PurePosixPath(path).relative_to(root)
                if os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK):
                    return place
    return None


def limits_of(wanted: CgroupLimits) -> list[tuple[str, str]]:
    """Files of a server's cgroup and what is to be written there. Raises CannotRun: this host cannot enforce it."""
    asked = []
    if wanted.memory_mb is not None:
        asked.append(("memory_mb", "memory", "memory.max", str(wanted.memory_mb * 1024 * 1024)))
    if wanted.processes is not None:
        asked.append(("processes", "pids", "pids.max", str(wanted.processes)))
    if wanted.cpus is not None:
        asked.append(("cpus", "cpu", "cpu.max", f"{round(wanted.cpus * CPU_PERIOD_US)} {CPU_PERIOD_US}"))
    for name, controller, _, _ in asked:
        if (place := own()) is None:
            raise CannotRun(f"cgroup.{name}: needs a cgroup (v2) that the Computer may write, and there is none")
        try:
            share(place, controller)
        except OSError as error:
            raise CannotRun(f"cgroup.{name}: {place} cannot limit {controller!r}: {error.strerror}") from None
    return [(file, value) for _, _, file, value in asked]


def share(place: Path, controller: str) -> None:
    """Let the cgroups below `place`, which is this process's, have a controller. Raises OSError."""
    if controller not in (place / "cgroup.controllers").read_text("ascii").split():
        raise OSError(errno.ENODEV, "it does not have this controller")
    switch = place / "cgroup.subtree_control"
    for _ in range(ROUNDS):
        if controller in switch.read_text("ascii").split():
            return
        try:
            switch.write_text(f"+{controller}", "ascii")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            _move_down(place)
        else:
            return
    raise OSError(errno.EBUSY, "it has processes beside the Computer's (for systemd, set Delegate=yes)")


def _move_down(place: Path) -> None:
    below = place / OWN_PROCESSES
    below.mkdir(exist_ok=True)
    this = psutil.Process()
    family = {process.pid for process in (this, *this.children(recursive=True))}
    for pid in family & set(map(int, (place / "cgroup.procs").read_text("ascii").split())):
        with suppress(ProcessLookupError):
            (below / "cgroup.procs").write_text(str(pid), "ascii")
