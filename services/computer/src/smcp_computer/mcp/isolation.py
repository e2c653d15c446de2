"""What the process of an MCP server may do on this host: user, environment, limits, cgroup, sandbox.

It makes the `Launch` of `process` from a server's settings. What cannot be enforced here is an error that names it: a
server never runs with less than its file says.
"""

import asyncio
import errno
import os
import pwd
import resource
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
from mcp.client.stdio import get_default_environment

from smcp_computer.config.lint import CannotRun
from smcp_computer.mcp import process
from smcp_computer.settings import CgroupLimits, HostSettings, ProcessLimits, Sandbox
from smcp_proto.schemas.config import MCPServerStdioParameters

SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/etc/localtime"),
    *("/etc/nsswitch.conf", "/etc/passwd", "/etc/pki", "/etc/resolv.conf", "/etc/ssl"),
)
"""What a sandbox shows, read-only: programs and libraries, and what they need to find hosts, users and certificates."""
PROBE_S: Final = 10.0
"""How long an empty sandbox may take to start and end; it takes milliseconds."""
OWN_PROCESSES: Final = "computer"
"""The cgroup that takes the Computer's own processes in: one that has processes cannot give limits to those below."""
ROUNDS: Final = 5
"""How often processes are moved there: one that is born meanwhile is missed by a round."""
CPU_PERIOD_US: Final = 100_000
"""The kernel's default."""


def launch_of(parameters: MCPServerStdioParameters, host: HostSettings) -> process.Launch:
    """How a server's program is started. Raises CannotRun: what is asked for does not exist on this host."""
    env = get_default_environment()
    if host.environment is not None:
        env = {name: os.environ[name] for name in host.environment if name in os.environ}
    user = None
    if host.user is not None:
        try:
            account = pwd.getpwnam(host.user)
        except KeyError:
            raise CannotRun(f"user: this host has no user {host.user!r}") from None
        if account.pw_uid != os.geteuid():  # else it is so already, and only root may set even its own groups
            if os.geteuid() != 0:
                raise CannotRun(f"user: only a Computer that runs as root can start a server as {host.user!r}")
            user = (account.pw_uid, account.pw_gid, os.getgrouplist(account.pw_name, account.pw_gid))
        if host.environment is None:
            env |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    command = [parameters.command, *parameters.args]
    if host.sandbox is not None:
        command = [*_bubblewrap(host.sandbox, parameters.cwd), "--", *command]
    return process.Launch(
        command,
        env | (parameters.env or {}),
        parameters.cwd,
        user=user,
        limits=_limits(host.limits, os.geteuid() if user is None else user[0]),
        # bubblewrap sets it itself; where it is installed setuid it could not start with it
        no_new_privileges=host.sandbox is None,
        cgroup=_cgroup_limits(host.cgroup),
    )


async def check_sandbox(launch: process.Launch, host: HostSettings) -> None:
    """Start and end an empty sandbox: only the kernel knows what it allows. Raises CannotRun, and ServerFailed as the
    server itself would."""
    if host.sandbox is None:
        return
    probe = replace(launch, command=[*launch.command[: launch.command.index("--") + 1], "true"])
    failure = f"it did not end within {PROBE_S:g} s"
    with suppress(TimeoutError):
        async with asyncio.timeout(PROBE_S), process.open_process(probe, asyncio.StreamReader()) as sandbox:
            said = (await sandbox.stderr.read()).decode(errors="replace").strip()
            await sandbox.watch()
            failure = said or "bwrap failed" if sandbox.status else ""
    if failure:
        raise CannotRun(f"sandbox: cannot be made on this host: {failure}")


def _limits(limits: ProcessLimits, uid: int) -> list[tuple[int, tuple[int, int]]]:
    """Soft and hard limits by number. A limit above the Computer's own one is that one: it is the stricter."""
    if limits.processes is not None and uid == 0:
        raise CannotRun("limits.processes: does not count for root; name another user for the server")
    if limits.memory_mb is not None and sys.platform != "linux":
        raise CannotRun("limits.memory_mb: needs Linux")
    found = []
    for limit, value, more in (
        (resource.RLIMIT_CPU, limits.cpu_s, 1),  # SIGXCPU at the soft limit, SIGKILL at the hard one
        # not the address space (RLIMIT_AS), of which Node and Go reserve many gigabytes that they never use
        (resource.RLIMIT_DATA, limits.memory_mb and limits.memory_mb * 1024 * 1024, 0),
        (resource.RLIMIT_NOFILE, limits.files, 0),
        (resource.RLIMIT_NPROC, limits.processes, 0),
    ):
        if value is not None:
            soft, hard = resource.getrlimit(limit)
            found.append((limit, (_lower(value, soft), _lower(value + more, hard))))
    return found


def _lower(value: int, limit: int) -> int:
    return value if limit == resource.RLIM_INFINITY else min(value, limit)


def _bubblewrap(sandbox: Sandbox, cwd: str | None) -> list[str]:
    program = shutil.which("bwrap") if sys.platform == "linux" else None
    if program is None:
        raise CannotRun("sandbox: needs Linux and bubblewrap (the program bwrap), which is not on this host")
    command = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    command += ["--share-net"] if sandbox.network else []
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 -- the sandbox's own
    for path in SYSTEM:
        command += ["--ro-bind-try", path, path]
    for name, flag, paths in (("read", "--ro-bind", sandbox.read), ("write", "--bind", sandbox.write)):
        for path in paths:
            whole = str(Path(path).expanduser())
            if not Path(whole).exists():
                raise CannotRun(f"sandbox.{name}: {whole} does not exist")
            command += [flag, whole, whole]
    return command + ([] if cwd is None else ["--chdir", cwd])


def _cgroup_limits(wanted: CgroupLimits) -> list[tuple[str, str]]:
    """Files of a server's cgroup and what is to be written there. Raises CannotRun: this host cannot enforce it."""
    asked = []
    if wanted.memory_mb is not None:
        asked.append(("memory_mb", "memory", "memory.max", str(wanted.memory_mb * 1024 * 1024)))
    if wanted.processes is not None:
        asked.append(("processes", "pids", "pids.max", str(wanted.processes)))
    if wanted.cpus is not None:
        asked.append(("cpus", "cpu", "cpu.max", f"{round(wanted.cpus * CPU_PERIOD_US)} {CPU_PERIOD_US}"))
    for name, controller, _, _ in asked:
        if (place := process.own_cgroup()) is None:
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
    family = {each.pid for each in (this, *this.children(recursive=True))}
    for pid in family & set(map(int, (place / "cgroup.procs").read_text("ascii").split())):
        with suppress(ProcessLookupError):
            (below / "cgroup.procs").write_text(str(pid), "ascii")
