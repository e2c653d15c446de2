"""The processes of MCP servers on a real host: nothing stays behind, whoever dies; users, limits and sandboxes hold."""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from operator import le
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psutil
import pytest

from smcp_computer.mcp import isolation
from smcp_computer.mcp import process as processes
from smcp_computer.mcp.errors import ServerDied
from smcp_computer.mcp.events import State
from smcp_testing.mcp_servers import configs
from smcp_testing.profiles import scaled
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.supervised import call, pid_of, running
from smcp_testing.waiting import eventually, within
from tests.e2e.worlds.layout import command

RESTARTS = scaled(ci=100, soak=1000)
CRASHES = scaled(ci=10, soak=100)
KILLS = scaled(ci=5, soak=50)
MIB = 1024 * 1024
NO_CGROUP = "no cgroup v2 that this user may write: how the kernel ends a server's cgroup was not run"
NO_LIMITS = "cgroup v2 has not the controllers cpu, memory and pids here (v1 has them): real limits were not run"

pytestmark = pytest.mark.timeout(scaled(ci=300, soak=3000))


def marked(mark: str) -> list[psutil.Process]:
    """All living processes of this host with `mark` in their command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if mark in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


async def ended(processes: list[psutil.Process]) -> None:
    """Return once none of them is left."""
    await eventually(lambda: not any(process.is_running() for process in processes), timeout=30)


def reaper() -> psutil.Process:
    """The process that starts the servers of this one."""
    (found,) = [child for child in psutil.Process().children() if "reaper.py" in " ".join(child.cmdline())]
    return found


def held(process: psutil.Process) -> tuple[int, int]:
    """Its descriptors (sockets and files), and its children."""
    return process.num_fds(), len(process.children())


def cgroup_of(pid: int) -> Path | None:
    """The directory of its cgroup (v2); None: the Computer makes none here."""
    return processes.find_cgroup(Path(f"/proc/{pid}/cgroup"))


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup (v2) for a Computer. Afterwards nothing lives there."""
    place = processes.own_cgroup()
    if place is None:
        pytest.skip(NO_CGROUP)
    switch, made = place / "cgroup.subtree_control", place / f"test-{uuid4().hex}"
    shared = switch.read_text().split()
    made.mkdir()
    try:
        yield made
        assert "populated 0" in (made / "cgroup.events").read_text().splitlines()
    finally:
        (made / "cgroup.kill").write_text("1")
        for directory, _, _ in os.walk(made, topdown=False):
            Path(directory).rmdir()
        for controller in set(switch.read_text().split()).difference(shared):
            switch.write_text(f"-{controller}")


def started_in(group: Path) -> tuple[str, ...]:
    """What starts the command behind it in a cgroup."""
    return "sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group)


def without_cgroups() -> tuple[str, ...]:
    """What starts the command behind it where no cgroup can be made, as far as this user can have that."""
    place = processes.own_cgroup()
    if place is None or os.geteuid() != 0:
        return ()
    return "unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(place)


@pytest.mark.rule("computer.process.stop", "computer.safety.zombies")
async def test_restarts_of_a_server_leave_no_process_descriptor_or_memory() -> None:
    mark = uuid4().hex
    this = psutil.Process()
    async with running(stays=configs.hostile()):
        before, used = held(this) + held(reaper()), 0
        for number in range(RESTARTS):
            async with running(box=configs.hostile("--leaves", "--mark", mark)) as servers:
                assert servers["box"].state is State.READY
                if number == 0:
                    await eventually(lambda: len(marked(mark)) == 4)
            if number == RESTARTS // 10:
                used = this.memory_info().rss
        assert marked(mark) == []
        # the reaper opens some files while it looks after what has ended
        await eventually(lambda: all(map(le, held(this) + held(reaper()), before)))
        assert this.memory_info().rss - used < 20 * MIB


@pytest.mark.rule("computer.challenge.isolation")
@pytest.mark.parametrize("with_cgroup", [True, False], ids=["cgroup", "subreaper"])
async def test_a_crash_of_a_server_leaves_none_of_its_detached_children(
    monkeypatch: pytest.MonkeyPatch, with_cgroup: bool
) -> None:
    if not with_cgroup:
        monkeypatch.setattr(processes, "own_cgroup", lambda: None)
    elif processes.own_cgroup() is None:
        pytest.skip(NO_CGROUP)
    mark = uuid4().hex
    crashing = configs.hostile("--leaves", "--dies", "tools/call", "--mark", mark)
    for _ in range(CRASHES):
        async with running(box=crashing) as servers:
            await eventually(lambda: len(marked(mark)) == 4)
            family = marked(mark)
            with pytest.raises(ServerDied):
                await call(servers["box"], "pid")
            await ended(family)
    assert marked(mark) == []


async def test_a_killed_keeper_leaves_nothing_and_its_server_starts_again() -> None:
    mark = uuid4().hex
    async with running(box=configs.hostile("--leaves", "--mark", mark)) as servers:
        family = marked(mark)
        server = await pid_of(servers["box"])
        keeper, group = psutil.Process(server).parent(), cgroup_of(server)
        assert keeper is not None
        keeper.kill()
        await ended(family)
        await eventually(lambda: servers["box"].starts == 2 and servers["box"].ready)
    assert marked(mark) == []
    assert group is None or not group.exists()


async def test_without_the_killed_reaper_servers_go_on_and_others_start() -> None:
    mark = uuid4().hex
    async with running(box=configs.hostile("--leaves", "--mark", mark)) as servers:
        pid = await pid_of(servers["box"])
        reaper().kill()
        async with running(other=configs.hostile("--mark", mark)):  # its first start may meet the dying one
            pass
        assert await pid_of(servers["box"]) == pid
    assert marked(mark) == []


@asynccontextmanager
async def computer(
    directory: Path, servers: dict[str, Any], *before: str, **more: Any
) -> AsyncIterator[ServiceProcess]:
    """A Computer that has not found its gateway yet; it runs its servers all the same."""
    config = directory / "computer.json"
    config.write_text(json.dumps({"servers": servers, **more}))
    run = [command("smcp-computer"), "run", "--config", str(config), "--office", "o", "--name", "c"]
    env = {"SMCP_HEALTH_PORT": "0", "SMCP_LOG_FORMAT": "json"}
    async with service_process(*before, *run, "--gateway", "http://127.0.0.1:9", env=env) as process:
        yield process


async def test_kill_9_of_a_computer_ends_its_servers_and_all_that_they_started(tmp_path: Path) -> None:
    mark = uuid4().hex
    servers = {
        "calm": configs.hostile("--mark", mark),
        "wild": configs.hostile("--leaves", "--ignores-sigterm", "--mark", mark),
    }
    for number in range(KILLS):
        async with computer(tmp_path, servers, *(without_cgroups() if number % 2 else ())) as process:
            for name in servers:
                await process.logged(f"MCP server {name!r} is ready with 1 tool", timeout=60)
            await eventually(lambda: len(marked(mark)) == 5)  # the last one is forked twice
            helpers = psutil.Process(process.pid).children(recursive=True)
            process.signal(signal.SIGKILL)
            await ended(helpers)
            assert marked(mark) == []


async def test_kill_9_of_a_computer_ends_a_server_that_forks_faster_than_it_can_be_found(
    tmp_path: Path, group: Path
) -> None:
    servers = {"away": configs.hostile("--runs-away"), "calm": configs.hostile()}
    async with computer(tmp_path, servers, *started_in(group)) as process:
        for name in servers:
            await process.logged(f"MCP server {name!r} is ready with 1 tool", timeout=60)
        assert len(list(group.glob("smcp-*"))) == 2
        process.signal(signal.SIGKILL)
        await eventually(lambda: "populated 0" in (group / "cgroup.events").read_text().splitlines())
    assert list(group.glob("smcp-*")) == []


SHARES = """
import subprocess, sys
from smcp_computer.mcp.isolation import share
from smcp_computer.mcp.process import own_cgroup
subprocess.Popen(["sleep", "600"], stderr=subprocess.DEVNULL)
share(own_cgroup(), sys.argv[1])
"""


def share(group: Path) -> tuple[str, str]:
    """Have a process in this cgroup, with a child, share a controller. Returns which, and why that failed."""
    controllers = (group.parent / "cgroup.controllers").read_text().split()
    if not controllers:
        pytest.skip("cgroup v2 has no controller here (v1 has them): how a Computer shares them out was not run")
    isolation.share(group.parent, controllers[0])
    command = [*started_in(group), sys.executable, "-c", SHARES, controllers[0]]
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    (group / "cgroup.kill").write_text("1")
    return controllers[0], ran.stderr


async def test_a_computer_that_limits_servers_moves_its_own_processes_further_down(group: Path) -> None:
    controller, failed = share(group)
    assert (group / "cgroup.subtree_control").read_text().split() == [controller], failed
    assert [each.name for each in group.iterdir() if each.is_dir()] == ["computer"]
    await eventually(lambda: "populated 0" in (group / "cgroup.events").read_text().splitlines())


async def test_a_computer_leaves_the_processes_of_others_in_its_cgroup_alone(group: Path) -> None:
    with subprocess.Popen([*started_in(group), "sleep", "600"]):
        await eventually((group / "cgroup.procs").read_text)
        _, failed = share(group)
    assert "it has processes beside the Computer's" in failed
    assert (group / "cgroup.subtree_control").read_text().split() == []
    await eventually(lambda: "populated 0" in (group / "cgroup.events").read_text().splitlines())


async def test_the_limits_of_a_cgroup_hold_for_all_processes_of_a_server(tmp_path: Path, group: Path) -> None:
    if not {"cpu", "memory", "pids"} <= set((group.parent / "cgroup.controllers").read_text().split()):
        pytest.skip(NO_LIMITS)
    for controller in ("cpu", "memory", "pids"):
        isolation.share(group.parent, controller)
    limited = configs.hostile("--leaves", cgroup={"memory_mb": 64, "processes": 4, "cpus": 0.5})
    tight = configs.hostile("--leaves", cgroup={"processes": 3})
    async with computer(tmp_path, {"limited": limited, "tight": tight}, *started_in(group)) as process:
        await process.logged("MCP server 'limited' is ready with 1 tool", timeout=60)
        await eventually(
            lambda: "'tight': its process ended" in " ".join(line.get("event", "") for line in process.log)
        )
        made = next(each for each in group.glob("smcp-*") if (each / "pids.max").read_text() == "4\n")
        assert (made / "memory.max").read_text() == f"{64 * MIB}\n"
        assert (made / "cpu.max").read_text() == "50000 100000\n"


async def test_a_hang_is_found_within_30_seconds_by_default_and_its_server_killed(tmp_path: Path) -> None:
    mark = uuid4().hex
    async with computer(tmp_path, {"box": configs.hostile("--ignores-sigterm", "--mark", mark)}) as process:
        await process.logged("MCP server 'box' is ready with 1 tool", timeout=60)
        (server,) = marked(mark)
        server.suspend()
        async with within(30.5):  # with the time that the log's line takes
            await process.logged("MCP server 'box': has stopped answering; it is started again", timeout=90)
        await eventually(lambda: not server.is_running() and len(marked(mark)) == 1)


async def test_a_computer_that_is_process_1_reaps_orphans_and_ends_as_it_is_told(tmp_path: Path) -> None:
    privileged()  # a namespace of processes
    program = tmp_path / "value.sh"
    program.write_text("#!/bin/sh\nsleep 0 &\necho value\n")
    program.chmod(0o755)
    inputs = [{"id": "key", "type": "command", "description": "k", "command": str(program)}]
    server = configs.hostile()
    server["server_parameters"]["env"] = {"KEY": "${input:key}"}
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    async with computer(tmp_path, {"box": server}, *unshare, inputs=inputs) as process:
        await process.logged("MCP server 'box' is ready with 1 tool", timeout=60)
        (first,) = psutil.Process(process.pid).children()

        def left() -> list[str]:
            with suppress(psutil.NoSuchProcess):  # it is reaped just now
                return [child.status() for child in first.children()]
            return []

        await eventually(lambda: len(left()) == 1 and psutil.STATUS_ZOMBIE not in left())
        os.kill(first.pid, signal.SIGTERM)
        assert await process.exit_code() == 0


PROBE = """
import json, os, resource, socket, sys
sys.argv.append("--mark")
found = {"uid": os.getuid(), "groups": os.getgroups(), "home": os.environ.get("HOME")}
found["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)
found["cpu"] = resource.getrlimit(resource.RLIMIT_CPU)
found["status"] = open("/proc/self/status").read()
for name in ("read", "write"):
    try:
        (open(os.environ["SEEN"] + "/" + name) if name == "read" else open(os.environ["KEPT"] + "/new", "w")).close()
        found[name] = True
    except OSError:
        found[name] = False
found["hidden"] = os.path.exists(os.environ["HIDDEN"])
try:
    bytearray(int(os.environ.get("ALLOCATE", "0")) * 1024 * 1024)
    found["allocated"] = True
except MemoryError:
    found["allocated"] = False
found["interfaces"] = [name for _, name in socket.if_nameindex()]
open(os.environ["KEPT"] + "/found.json", "w").write(json.dumps(found))
exec(open(sys.argv[1]).read())
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that other users may enter. That of pytest's `tmp_path` is closed by each pytest that starts."""
    with TemporaryDirectory(prefix="smcp-open-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


async def seen(open_to_all: Path, allocate: int = 0, **host: Any) -> dict[str, Any]:
    """What a server with these settings finds."""
    kept, shown, hidden = open_to_all / "kept", open_to_all / "shown", open_to_all / "hidden"
    for place in (kept, shown, hidden):
        place.mkdir(exist_ok=True)
        place.chmod(0o777)
    (shown / "read").write_text("")
    hostile = Path(configs.__file__).with_name("hostile.py")
    shutil.copy(hostile, shown / "hostile.py")
    (shown / "probe.py").write_text(PROBE)
    env = {"SEEN": str(shown), "KEPT": str(kept), "HIDDEN": str(hidden), "ALLOCATE": str(allocate)}
    arguments = ["-I", "-S", str(shown / "probe.py"), str(shown / "hostile.py")]
    parameters = {"command": "/usr/bin/python3", "args": arguments, "env": env}
    async with running(box={"type": "stdio", "server_parameters": parameters, **host}) as servers:
        assert servers["box"].state is State.READY, servers["box"].reason
    found: dict[str, Any] = json.loads((kept / "found.json").read_text())
    return found


def privileged() -> None:
    if os.geteuid() != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("CI has to run as root: other users, sandboxes and process 1 are tested")
        pytest.skip("another user, or a namespace of processes, needs root")


@pytest.mark.rule("computer.safety.limits")
async def test_no_server_gains_privileges_and_limits_hold(open_to_all: Path) -> None:
    found = await seen(open_to_all, allocate=512, limits={"files": 100, "cpu_s": 50, "memory_mb": 256})
    assert "NoNewPrivs:\t1" in found["status"]
    assert (found["files"], found["cpu"], found["allocated"]) == ([100, 100], [50, 51], False)
    assert (await seen(open_to_all, allocate=512))["allocated"]


@pytest.mark.rule("computer.security.children")
async def test_a_server_runs_as_another_user_with_its_groups_and_home(open_to_all: Path) -> None:
    privileged()
    nobody = pwd.getpwnam("nobody")
    found = await seen(open_to_all, user="nobody", limits={"processes": 50})
    assert (found["uid"], found["home"]) == (nobody.pw_uid, nobody.pw_dir)
    assert found["groups"] == os.getgrouplist("nobody", nobody.pw_gid)
    assert "CapEff:\t0000000000000000" in found["status"]


@pytest.mark.parametrize("user", [None, "nobody"])
async def test_a_sandbox_shows_only_what_is_allowed(open_to_all: Path, user: str | None) -> None:
    if shutil.which("bwrap") is None and os.environ.get("CI") != "true":
        pytest.skip("bubblewrap is missing")
    if user:
        privileged()
    sandbox = {"read": [str(open_to_all / "shown")], "write": [str(open_to_all / "kept")]}
    (open_to_all / "shown").mkdir()
    (open_to_all / "kept").mkdir()
    found = await seen(open_to_all, sandbox=sandbox, user=user)
    assert (found["read"], found["write"], found["hidden"]) == (True, True, False)
    assert found["interfaces"] == ["lo"]
    assert "NoNewPrivs:\t1" in found["status"]
    before = {name for _, name in socket.if_nameindex()}
    online = await seen(open_to_all, sandbox={**sandbox, "network": True}, user=user)
    stayed = before & {name for _, name in socket.if_nameindex()}  # those of containers come and go
    assert stayed <= set(online["interfaces"])
