"""What an MCP server may do on this host: limits, another user, the environment, a sandbox; and what is refused."""

import json
import os
import pwd
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.config.file import ComputerConfig, parse_config
from smcp_computer.config.lint import CannotRun, ConfigError
from smcp_computer.mcp import process
from smcp_computer.mcp.isolation import launch_of
from smcp_computer.mcp.process import Launch
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import running

AS_ROOT = os.geteuid() == 0


def configured(cwd: str | None = None, env: dict[str, str] | None = None, **host: Any) -> ComputerConfig:
    parameters = {"command": "server", "args": ["--all"], "cwd": cwd, "env": env}
    return parse_config(json.dumps({"servers": {"box": {"type": "stdio", "server_parameters": parameters, **host}}}))


def launch(cwd: str | None = None, env: dict[str, str] | None = None, **host: Any) -> Launch:
    """Of a server with these settings."""
    config = configured(cwd, env, **host)
    server = config.servers["box"]
    return launch_of(server.server_parameters, config.host["box"])  # type: ignore[arg-type]


def test_a_server_without_settings_runs_as_the_computer_does_and_gains_no_privileges() -> None:
    made = launch()
    assert (made.command, made.user, made.limits, made.no_new_privileges) == (["server", "--all"], None, [], True)


def test_the_allow_list_of_the_environment_replaces_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANTED", "1")
    monkeypatch.setenv("OTHER", "2")
    assert launch(environment=["WANTED", "MISSING"], env={"OWN": "3"}).env == {"WANTED": "1", "OWN": "3"}
    assert "WANTED" not in launch().env


def test_a_limit_above_that_of_the_computer_is_that_of_the_computer() -> None:
    (limit,) = launch(limits={"files": 10**9}).limits
    soft, hard = limit[1]
    assert soft < 10**9
    assert hard <= 10**9


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ({"user": "nobody-of-that-name"}, "user: this host has no user 'nobody-of-that-name'"),
        ({"user": "root", "limits": {"processes": 5}}, "limits.processes: does not count for root"),
        ({"sandbox": {"read": ["/no/such/place"]}}, "sandbox.read: /no/such/place does not exist"),
        ({"sandbox": {"write": ["/no/such/place"]}}, "sandbox.write: /no/such/place does not exist"),
    ],
)
def test_what_this_host_cannot_enforce_is_refused_by_its_name(host: dict[str, Any], problem: str) -> None:
    if "user" in host and not AS_ROOT and host["user"] == "root":
        problem = "user: only a Computer that runs as root"
    if "sandbox" in host and shutil.which("bwrap") is None:
        problem = "sandbox: needs Linux and bubblewrap"
    with pytest.raises(CannotRun, match=problem):
        launch(**host)


def test_limits_of_a_cgroup_that_this_host_does_not_give_are_refused_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "own_cgroup", lambda: tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu pids")
    with pytest.raises(CannotRun, match=r"cgroup\.memory_mb: .* cannot limit 'memory'"):
        launch(cgroup={"memory_mb": 64})
    assert [each.name for each in tmp_path.iterdir()] == ["cgroup.controllers"]


def test_another_user_is_refused_unless_the_computer_runs_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(CannotRun, match="user: only a Computer that runs as root can start a server as 'daemon'"):
        launch(user="daemon")


def test_the_own_user_is_no_change_that_would_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = pwd.getpwnam("daemon")
    monkeypatch.setattr(os, "geteuid", lambda: daemon.pw_uid)
    made = launch(user="daemon")
    assert (made.user, made.env["HOME"]) == (None, daemon.pw_dir)


@pytest.mark.parametrize(
    ("setting", "made"),
    [
        ("user", Launch(["true"], {}, None, user=(2**31, 2**31, [2**40]))),
        ("limits", Launch(["true"], {}, None, limits=[(resource.RLIMIT_NOFILE, (2, 1))])),
    ],
)
async def test_a_user_or_limit_that_the_system_refuses_is_named_and_the_server_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, setting: str, made: Launch
) -> None:
    monkeypatch.setattr("smcp_computer.mcp.stdio.launch_of", lambda *_: made)
    async with running(ready=(), box={"type": "stdio", "server_parameters": {"command": "true"}}) as servers:
        status = servers["box"].status()
    assert status.reason == f"{setting}: cannot be set on this host: it is not valid"
    assert servers["box"].starts == 0


async def test_a_sandbox_without_bubblewrap_is_a_failed_server_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    server = {"type": "stdio", "server_parameters": {"command": "true"}, "sandbox": {}}
    async with running(ready=(), box=server) as servers:
        status = servers["box"].status()
    assert status.reason.startswith("sandbox: needs Linux and bubblewrap")
    assert servers["box"].starts == 0


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ({"limits": {"memory_mb": 0}}, r"servers\.box\.limits\.memory_mb: "),
        ({"limits": {"disk": 1}}, r"servers\.box\.limits\.disk: "),
        ({"cgroup": {"cpus": 0}}, r"servers\.box\.cgroup\.cpus: "),
        ({"sandbox": {"read": ["here"]}}, r"servers\.box\.sandbox\.read\.0: .*absolute path"),
    ],
)
def test_a_wrong_setting_is_a_mistake_of_the_file_with_its_place(host: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        launch(**host)


@pytest.mark.parametrize(
    ("memberships", "found"),
    [
        (["0::/here/it"], "here/it"),
        (["4:memory:/away", "0::/here/it"], "here/it"),
        (["0::/"], "."),
        (["4:memory:/here"], None),
        (["0::/../here"], None),
        (["0::/nowhere"], None),
    ],
    ids=["unified", "hybrid", "namespace", "v1", "outside", "not seen"],
)
def test_the_own_cgroup_is_found_where_others_can_be_made_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memberships: list[str], found: str | None
) -> None:
    hierarchy = tmp_path / "cgroup"
    monkeypatch.setattr(process, "HIERARCHIES", (tmp_path / "none", hierarchy))
    (hierarchy / "here" / "it").mkdir(parents=True)
    for directory in (hierarchy, hierarchy / "here", hierarchy / "here" / "it"):
        (directory / "cgroup.procs").touch()
    (tmp_path / "self").write_text("\n".join(memberships))
    assert process.find_cgroup(tmp_path / "self") == (None if found is None else hierarchy / found)


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files of a cgroup, in the place of the own one."""
    for name, text in (("controllers", "cpu memory pids"), ("subtree_control", "memory pids"), ("procs", "")):
        (tmp_path / f"cgroup.{name}").write_text(text)
    monkeypatch.setattr(process, "own_cgroup", lambda: tmp_path)
    return tmp_path


async def test_the_limits_of_a_cgroup_are_written_before_the_server_starts_in_it(hierarchy: Path) -> None:
    asked = {"memory_mb": 64, "processes": 20, "cpus": 1.5}
    async with running(box=configs.hostile(cgroup=asked), other=configs.hostile()) as servers:
        assert all(each.ready for each in servers.values())
    made = [{file.name: file.read_text() for file in group.iterdir()} for group in hierarchy.glob("smcp-*")]
    limits = {"memory.max": "67108864", "pids.max": "20", "cpu.max": "150000 100000"}
    started = {"cgroup.procs": "0", "cgroup.kill": "1"}
    assert sorted(made, key=len) == [started, limits | started]
    assert (hierarchy / "cgroup.subtree_control").read_text() == "+cpu"  # it had the others


@pytest.mark.parametrize("limit", ["memory_mb", "processes", "cpus"])
async def test_a_cgroup_limit_that_this_host_cannot_enforce_is_a_failed_server_that_names_it(
    hierarchy: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    (hierarchy / "cgroup.controllers").write_text("hugetlb")
    server = {"type": "stdio", "server_parameters": {"command": sys.executable}, "cgroup": {limit: 1}}
    async with running(ready=(), box=server) as servers:
        assert servers["box"].status().reason.startswith(f"cgroup.{limit}: {hierarchy} cannot limit")
    monkeypatch.setattr(process, "own_cgroup", lambda: None)
    with pytest.raises(CannotRun, match=f"cgroup.{limit}: needs a cgroup"):
        launch(cgroup={limit: 1})
