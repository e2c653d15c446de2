"""`smcp keys`, as it is installed; and `smcp up` with what it made."""

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from smcp_agent import NotAuthenticated, SmcpAgent
from smcp_auth import api_keys as key_file
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

SMCP = Path(sys.executable).parent / "smcp"
AGENT = Path(sys.executable).parent / "smcp-agent"
ANY = ["--role", "agent", "--name", "*"]
"""What `add` demands beside an office."""


def keys(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_")}
    command = born(SMCP, "keys", *arguments, knows=COMMANDS)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env={**kept, **environment})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_key_that_is_made_or_removed_has_a_record_without_the_key(path: Path, tmp_path: Path) -> None:
    trail = tmp_path / "audit.jsonl"
    recording = {"SMCP_AUDIT": "on", "SMCP_AUDIT_FILE": str(trail), "SMCP_AUTH_KEYS": str(path)}
    made = keys("add", "--office", "lab", *ANY, "--subject", "anna", **recording)
    (entry,) = key_file.read(path)
    assert keys("rm", entry.id, **recording).returncode == 0
    written = trail.read_text()
    said = [
        (each["kind"], each["outcome"], each["subject"], each["event"])
        for each in map(json.loads, written.splitlines())
    ]
    assert said == [("key", "added", "anna", entry.id), ("key", "removed", "anna", entry.id)]
    assert made.stdout.strip() not in written


@pytest.mark.parametrize("mode", ["on", "required"])
def test_a_key_that_cannot_be_recorded_is_made_with_a_warning_or_not_at_all(path: Path, mode: str) -> None:
    recording = {"SMCP_AUDIT": mode, "SMCP_AUDIT_FILE": "/dev/full", "SMCP_AUTH_KEYS": str(path)}
    done = keys("add", "--office", "lab", *ANY, **recording)
    if mode == "required":
        assert (done.returncode, done.stdout, path.exists()) == (1, "", False)
        assert "nothing is changed, since it cannot be recorded" in done.stderr
    else:
        assert (done.returncode, len(key_file.read(path))) == (0, 1)
        assert "this is not in the audit trail" in done.stderr


def test_a_key_is_printed_once_listed_without_itself_and_removed(path: Path) -> None:
    chosen = (
        "--office",
        "lab-*",
        "--role",
        "agent",
        "--name",
        "anna",
        "--subject",
        "anna's laptop",
        "--expires",
        "90d",
    )
    made = keys("add", "-f", str(path), *chosen)
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert re.fullmatch(r"smcp_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", key)
    assert key not in made.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (entry,) = key_file.read(path)
    listed = keys("list", SMCP_AUTH_KEYS=str(path))
    assert listed.returncode == 0
    for word in (entry.id, "anna's laptop", "lab-*", "agent", "anna", "expires: "):
        assert word in listed.stdout
    assert "computer" not in listed.stdout
    for secret in (key, key.split("_", 2)[2], entry.hash):
        assert secret not in listed.stdout + listed.stderr
    assert keys("rm", entry.id, "-f", str(path)).returncode == 0
    assert key_file.read(path) == ()
    again = keys("rm", entry.id, "-f", str(path))
    assert (again.returncode, "no key" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (ANY, "--office"),
        (["--office", "lab", "--name", "*"], "--role"),
        (["--office", "lab", "--role", "agent"], "--name"),
        ([*ANY, "--office", "a\\"], "--office"),
        ([*ANY, "--office", ""], "--office"),
        (["--office", "lab", "--name", "*", "--role", "root"], "--role"),
        (["--office", "lab", "--role", "agent", "--name", ""], "--name"),
        ([*ANY, "--office", "lab", "--subject", ""], "--subject"),
        ([*ANY, "--office", "lab", "--expires", "soon"], "--expires"),
        ([*ANY, "--office", "lab", "--expires", "2020-01-01T00:00Z"], "--expires"),
        ([*ANY, "--office", "lab", "--expires", "2090-01-01T00:00"], "time zone"),
    ],
)
def test_a_wrong_option_is_named_and_no_key_is_made(path: Path, arguments: list[str], named: str) -> None:
    wrong = keys("add", "-f", str(path), *arguments)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.count(named) == 1
    assert "Traceback" not in wrong.stderr
    assert not path.exists()


def test_an_unknown_role_is_refused_with_the_known_ones(path: Path) -> None:
    wrong = keys("add", "-f", str(path), "--office", "lab", "--role", "root", "--name", "*")
    assert wrong.stderr == "error: --role: must be 'computer' or 'agent'\n"


def test_a_file_that_cannot_be_used_is_said_in_a_sentence(path: Path) -> None:
    path.write_text("[]")
    for command in (["add", "--office", "lab", *ANY], ["list"], ["rm", "x"]):
        failed = keys(*command, "-f", str(path))
        assert failed.returncode == 2
        assert str(path) in failed.stderr
        assert "Traceback" not in failed.stderr
    assert path.read_text() == "[]"
    path.write_text("{")
    assert "is not valid JSON at line 1 column 1" in keys("list", "-f", str(path)).stderr
    assert keys("list", "-f", str(path.with_name("none"))).returncode == 2
    assert keys("add", "-f", str(path / "none"), "--office", "lab", *ANY).returncode == 2


async def test_up_with_keys_lets_their_holders_in_and_nobody_else(path: Path, tmp_path: Path) -> None:
    key = (await asyncio.to_thread(keys, "add", "-f", str(path), "--office", "home", *ANY)).stdout.strip()
    config = tmp_path / "computer.json"
    config.write_text('{"servers": {}}')
    env = {"SMCP_AUTH_KEYS": str(path)}
    async with service_process(
        *born(SMCP, "up", "--port", "0", "--config", config, knows=COMMANDS), env=env
    ) as process:

        def url() -> str:
            found = re.search(r"Agents connect to +(\S+)", "\n".join(process.output))
            return found[1] if found else ""

        at = await eventually(url, timeout=60, message="smcp up printed no URL")
        assert "SMCP_TOKEN" in "\n".join(process.output)
        with pytest.raises(NotAuthenticated):
            async with SmcpAgent(at, office="home", name="anna"):
                raise AssertionError("it was let in")

        def command(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
            kept = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_")}
            return subprocess.run(
                born(AGENT, "--url", at, "--name", "anna", *options, "list", knows=COMMANDS),
                check=False, capture_output=True, text=True, timeout=60, env={**kept, **environment},
            )  # fmt: skip

        for let_in in (
            await asyncio.to_thread(command, SMCP_TOKEN=key),
            await asyncio.to_thread(command, "--token", key),
        ):
            assert let_in.returncode == 0, let_in.stderr
            assert "computer" in let_in.stdout
        refused = await asyncio.to_thread(command, SMCP_TOKEN="wrong")
        assert refused.returncode == 1
        assert "SMCP_TOKEN" in refused.stderr
        assert "401" in refused.stderr
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0


async def test_up_listens_elsewhere_only_with_keys_or_when_told_so(path: Path, tmp_path: Path) -> None:
    async with service_process(
        *born(SMCP, "up", "--port", "0", knows=COMMANDS), env={"SMCP_GATEWAY_HOST": "0.0.0.0"}
    ) as process:
        assert await process.exit_code() == 2
        assert any("SMCP_INSECURE=true" in line["event"] for line in process.log)


def test_a_key_can_be_for_some_computers_and_tools_only(path: Path) -> None:
    only = ("--computer", "rack-*", "--tool", "read_*", "--tool", "list", "--read-only")
    assert keys("add", "-f", str(path), "--office", "lab", *ANY, *only).returncode == 0
    (entry,) = key_file.read(path)
    assert (entry.computers, entry.tools, entry.read_only) == (("rack-*",), ("read_*", "list"), True)
    listed = keys("list", "-f", str(path)).stdout
    assert "read_only: True" in listed
    assert "computers: rack-*  tools: read_*, list" in listed


def test_the_key_of_smcp_mcp_may_delegate_and_has_no_quota(path: Path) -> None:
    assert keys("add", "-f", str(path), "--office", "lab", *ANY, "--delegates").returncode == 0
    (entry,) = key_file.read(path)
    assert entry.delegates
    assert entry.quota is not None
    assert set(entry.quota.model_dump().values()) == {0}
    assert "delegates: True" in keys("list", "-f", str(path)).stdout


def test_a_key_without_such_limits_is_one_that_older_gateways_read(path: Path) -> None:
    assert keys("add", "-f", str(path), "--office", "lab", *ANY).returncode == 0
    (entry,) = json.loads(path.read_text())["keys"]
    assert not {"computers", "tools", "read_only", "delegates", "quota"} & entry.keys()
    assert {"id", "subject", "hash", "offices", "roles", "created"} <= entry.keys()
