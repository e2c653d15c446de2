"""What an MCP server may do on this host: limits, another user, the environment, a sandbox; and what is refused."""

import json
import os
import pwd
import resource
import shutil
from typing import Any

import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.config.lint import CannotRun, ConfigError
from smcp_computer.mcp.isolation import launch_of
from smcp_computer.mcp.process import Launch
from smcp_testing.supervised import running

AS_ROOT = os.geteuid() == 0


def launch(cwd: str | None = None, env: dict[str, str] | None = None, **host: Any) -> Launch:
    """Of a server with these settings."""
    parameters = {"command": "server", "args": ["--all"], "cwd": cwd, "env": env}
    written = {"servers": {"box": {"type": "stdio", "server_parameters": parameters, **host}}}
    config = parse_config(json.dumps(written))
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
    with pytest.raises(CannotRun, match=problem):
        launch(**host)


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
    async with running(box={"type": "stdio", "server_parameters": {"command": "true"}}) as servers:
        status = servers["box"].status()
    assert status.reason == f"server 'box': {setting}: cannot be set on this host: it is not valid"
    assert servers["box"].starts == 0


async def test_a_sandbox_without_bubblewrap_is_a_failed_server_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    server = {"type": "stdio", "server_parameters": {"command": "true"}, "sandbox": {}}
    async with running(box=server) as servers:
        status = servers["box"].status()
    assert status.reason.startswith("server 'box': sandbox: needs Linux and bubblewrap")
    assert servers["box"].starts == 0


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ({"limits": {"memory_mb": 0}}, r"servers\.box\.limits\.memory_mb: "),
        ({"limits": {"disk": 1}}, r"servers\.box\.limits\.disk: "),
        ({"sandbox": {"read": ["here"]}}, r"servers\.box\.sandbox\.read\.0: .*absolute path"),
    ],
)
def test_a_wrong_setting_is_a_mistake_of_the_file_with_its_place(host: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        launch(**host)
