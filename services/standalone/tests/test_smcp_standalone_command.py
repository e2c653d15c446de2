"""The command `smcp`, as it is installed: what it prints, how it ends, what it refuses."""

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from smcp_agent import NotAuthenticated, SmcpAgent
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.mcp_servers import configs
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually

SMCP = Path(sys.executable).parent / "smcp"


def command(*arguments: str, fresh: bool = False) -> list[str]:
    """Args:
    fresh: in a Python of its own.
    """
    return [str(SMCP), *arguments] if fresh else born(SMCP, *arguments, knows=COMMANDS)


def smcp(*arguments: str, fresh: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_")}
    return subprocess.run(
        command(*arguments, fresh=fresh),
        check=False, capture_output=True, text=True, timeout=60, env={**kept, **environment},
    )  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path)


def written(directory: Path, *, fresh: bool = False) -> Path:
    """A Computer's file with a toolbox; `fresh` as above."""
    path = directory / "computer.json"
    path.write_text(json.dumps({"servers": {"toolbox": configs.stdio(fresh=fresh)}}))
    return path


@asynccontextmanager
async def running(
    *arguments: str, fresh: bool = False, **environment: str
) -> AsyncIterator[tuple[ServiceProcess, str]]:
    """`smcp up`, and the URL that it printed.

    Args:
        fresh: in a Python of its own, for tests of its children.
    """
    async with service_process(*command("up", "--port", "0", *arguments, fresh=fresh), env=environment) as process:

        def url() -> str:
            found = re.search(r"Agents connect to +(\S+)", "\n".join(process.output))
            return found[1] if found else ""

        try:
            yield process, await eventually(url, timeout=60, message="smcp up printed no URL")
        except AssertionError as error:
            error.add_note("\n".join([*process.output, *(str(line) for line in process.log[-40:])]))
            raise


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def ended(process: ServiceProcess, number: signal.Signals) -> int:
    process.signal(number)
    return await process.exit_code()


def test_the_help_of_up_names_the_port_and_its_setting() -> None:
    shown = smcp("up", "-h", COLUMNS="200")
    assert all(word in shown.stdout for word in ("(default: 8000)", "SMCP_GATEWAY_PORT"))


async def test_up_runs_everything_and_ctrl_c_ends_it_with_0(tmp_path: Path) -> None:
    arguments = ("--config", str(written(tmp_path, fresh=True)), "--office", "an office", "--name", "the one")
    async with running(*arguments, fresh=True, PATH=os.defpath) as (process, url):
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("nats-server" in child.name() for child in children)
        async with SmcpAgent(url, office="an office", name="caller") as agent:
            assert (await agent.call_tool("the one", "add", {"a": 1, "b": 2})).text == "3"
            looked = await asyncio.to_thread(smcp, "offices", "--json")
            [office] = json.loads(looked.stdout)["offices"]
            assert (office["office"], office["agent"], office["computers"]) == ("an office", "caller", 1)
        printed = "\n".join(process.output)
        assert f"smcp-agent --url {url} --office 'an office' list" in printed
        assert "MCP servers        toolbox" in printed
        kept = {name: os.environ[name] for name in ("HOME", "XDG_STATE_HOME")}
        elsewhere = {"PATH": os.defpath, **kept}  # a terminal in which no environment is activated
        typed = next(line for line in process.output if line.endswith(" list"))
        listed = await asyncio.to_thread(
            subprocess.run, ["sh", "-c", typed], check=False, capture_output=True, text=True, timeout=60, env=elsewhere
        )
        assert (listed.returncode, listed.stderr) == (0, "")
        assert "the one" in listed.stdout
        assert await ended(process, signal.SIGINT) == 0
        await eventually(lambda: not any(map(lives, children)))


async def test_up_json_prints_one_line_when_it_is_ready_and_no_key(config: Path) -> None:
    arguments = ("up", "--port", "0", "--json", "--config", str(config), "--office", "an office", "--name", "the one")
    async with service_process(*command(*arguments, fresh=True)) as process:
        await eventually(lambda: process.output, timeout=60, message="smcp up printed no line")
        said = json.loads(process.output[0])
        assert (said["office"], said["computer"], said["pid"]) == ("an office", "the one", process.pid)
        assert (said["servers"], said["failed"]) == (["toolbox"], {})
        key = Path(said["key_file"]).read_text().strip()
        async with SmcpAgent(said["url"], office="an office", name="caller", token=key) as agent:
            assert (await agent.call_tool("the one", "add", {"a": 1, "b": 2})).text == "3"
        assert await ended(process, signal.SIGINT) == 0
        assert any("is released" in str(line.get("event")) for line in process.log), "the registry ended first"
        assert len(process.output) == 1
        assert key not in f"{process.output}{process.log}"


def test_up_says_what_is_wrong_with_each_of_its_parts(tmp_path: Path) -> None:
    config = tmp_path / "broken.json"
    config.write_text("[")
    wrong = {"SMCP_KV_REPLICAS": "none", "SMCP_GATEWAY_PORT": "x", "SMCP_CONFIRM": "perhaps", "SMCP_MCP_PORT": "x"}
    cases: list[tuple[tuple[str, ...], dict[str, Any], str]] = [((), {name: wrong[name]}, name) for name in wrong]
    for arguments, variables, named in (*cases, (("--config", str(config)), {}, str(config))):
        told = smcp("up", "--check-config", *arguments, **variables)
        assert told.returncode == 2
        assert told.stderr.count(named) == 1, told.stderr


def test_up_shows_the_settings_of_its_parts_and_checks_what_it_is_given_without_a_trace(
    config: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    told = smcp("up", "--port", "0", "--check-config", "--config", str(config), "--data", str(data), SMCP_LEASE_S="3")
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert {"SMCP_LEASE_S=3.0", "SMCP_GATEWAY_PORT=0", "SMCP_KV_REPLICAS=1", "SMCP_CONFIRM="} <= set(lines)
    assert not [line for line in lines if "SMCP_CONFIG=" in line]
    assert lines[-1] == "the configuration is valid"
    assert not data.exists()
    data.mkdir()
    (data / "computer.json").write_text('{"servers": 1}')
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("offices: 1")
    for wrong, named in (("--data", data), ("--hosts", hosts), ("--config", hosts)):
        refused = smcp("up", "--check-config", wrong, str(named))
        assert refused.returncode == 2, refused.stdout
        assert "error: " in refused.stderr
    assert [path.name for path in data.iterdir()] == ["computer.json"]


async def test_up_is_not_up_before_its_mcp_servers_have_started_and_is_stopped_meanwhile(tmp_path: Path) -> None:
    mute = {
        "type": "stdio",
        "server_parameters": {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]},
    }
    path = tmp_path / "computer.json"
    path.write_text(json.dumps({"servers": {"toolbox": configs.stdio(), "mute": mute}}))
    async with service_process(*command("up", "--port", "0", "--config", str(path))) as process:
        ready = "MCP server 'toolbox' is ready with"
        await eventually(lambda: any(ready in str(line.get("event")) for line in process.log), timeout=60)
        assert not [line for line in process.output if "A2C-SMCP is up" in line]
        assert await ended(process, signal.SIGINT) == 0


async def test_nothing_is_left_when_up_is_killed(tmp_path: Path) -> None:
    async with running("--config", str(written(tmp_path, fresh=True)), fresh=True) as (process, _):
        children = psutil.Process(process.pid).children(recursive=True)
        await process.kill()
        await eventually(lambda: not any(map(lives, children)))


async def test_the_next_run_removes_the_keys_of_one_that_was_killed_and_not_those_of_one_that_runs(
    config: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    started = partial(
        running, "--config", str(config), fresh=True, TMPDIR=str(temporary), XDG_STATE_HOME=str(tmp_path / "state")
    )

    def left() -> tuple[set[Path], set[str]]:
        runs = (tmp_path / "state/a2c-smcp/runs").iterdir()
        return {*temporary.glob("smcp-up-*")}, {each.stem for each in runs}

    async with started() as (killed, _):
        await killed.kill()
    [of_killed], named = left()
    assert named == {str(killed.pid)}
    async with started() as (first, _), started() as (second, _):
        directories, named = left()
        assert (len(directories), of_killed in directories) == (2, False)
        assert named == {str(first.pid), str(second.pid)}


async def test_up_ends_with_1_when_its_nats_server_dies(config: Path) -> None:
    async with running("--config", str(config), fresh=True) as (process, _):
        nats = next(c for c in psutil.Process(process.pid).children() if "nats-server" in c.name())
        nats.kill()
        assert await process.exit_code() == 1
        assert any("nats-server ended with -9" in str(line.get("event")) for line in process.log)


async def test_data_is_kept_and_used_by_one_at_a_time(config: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    arguments = ("--config", str(config), "--data", str(data))
    async with running(*arguments) as (process, _):
        secret = (data / "nats" / "creds" / "up-gateway.json").read_text()
        second = smcp("up", "--port", "0", *arguments)
        assert second.returncode == 1
        assert "another smcp up runs in" in second.stderr
        assert await ended(process, signal.SIGTERM) == 0
    async with running(*arguments) as (process, _):
        assert (data / "nats" / "creds" / "up-gateway.json").read_text() == secret
        assert await ended(process, signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--config", "nowhere.json"], "nowhere.json: cannot be read"),
        (["up", "--config", "x" * 300], "cannot be read: File name too long"),
        (["audit", "verify", "--file", "x" * 300], "cannot be read: File name too long"),
        (["up", "--office", ""], "--office"),
        (["up", "--name", "x" * 129], "--name"),
        (["up", "--office", "", "--check-config"], "--office"),
        (["up", "--name", "a\nb", "--check-config"], "--name"),
        (["up", "--port", "70000"], "--port"),
        (["up", "--hosts", "nowhere.yaml"], "--hosts: nowhere.yaml: cannot be read"),
        (["nats-config", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["nats-config"], "FILE"),
        (["up", "--data", "/dev/null"], "--data: /dev/null"),
        (["audit", "list", "--file", "nowhere"], "--file (SMCP_AUDIT_FILE): nowhere: cannot be read"),
        (["fly"], "fly"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_option(arguments: list[str], said: str) -> None:
    refused = smcp(*arguments, TERM="dumb", COLUMNS="200")
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_up_tells_a_warning_beside_a_mistake_as_a_warning(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text('{"servers": {"a": {"command": "x", "args": [1], "colour": "red"}}}')
    refused = smcp("up", "--config", str(config))
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        f"error: {config}: servers.a.args.0: must be a string",
        f"warning: {config}: servers.a.colour: is not a known field",
    ]


def test_nats_config_names_each_wrong_field_ends_with_2_and_writes_nothing(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("{offices: [lab], gateways: 0, registries: [up/1]}")
    refused = smcp("nats-config", str(hosts), "--out", str(tmp_path / "out"))
    assert refused.returncode == 2
    assert f"{hosts}: gateways: must be a list" in refused.stderr
    assert f"{hosts}: registries.0: a credential is a file of this name" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_up_refuses_hosts_with_a_credential_of_its_own(tmp_path: Path, config: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("{offices: [lab], registries: [UP-registry, r], gateways: []}")
    refused = smcp("up", "--port", "0", "--config", str(config), "--hosts", str(hosts))
    assert refused.returncode == 2
    assert "error: --hosts: registries.1: 'UP-registry' is the name of another credential" in refused.stderr


def test_a_wrong_setting_of_the_environment_ends_with_2(config: Path) -> None:
    refused = smcp("up", "--config", str(config), SMCP_LEASE_S="soon")
    assert refused.returncode == 2
    assert "SMCP_LEASE_S" in refused.stderr


def test_nats_config_writes_where_it_is_told_and_says_what(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("{offices: [lab], computers: [{credential: rack, office: lab}]}")
    told = smcp("nats-config", str(hosts), "--out", str(tmp_path / "out"))
    assert told.returncode == 0, told.stderr
    for name in ("nats-server.conf", "creds/registry-1.json", "creds/gateway-1.json", "creds/rack.json"):
        path = tmp_path / "out" / name
        assert str(path) in told.stdout
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_up_lets_its_own_user_in_by_the_key_of_the_run_and_nobody_else(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running("--config", str(config)) as (process, url):
        key = re.search(r"Key of this run +(\S+)", "\n".join(process.output))
        assert key is not None
        async with SmcpAgent(url, office="home", name="anna") as agent:
            assert agent.computers() == ["computer"]
        [file] = (Path(os.environ["XDG_STATE_HOME"]) / "a2c-smcp" / "keys").glob(f"*-{url.rpartition(':')[2]}")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with monkeypatch.context() as another_user:
            another_user.setenv("XDG_STATE_HOME", str(tmp_path))
            with pytest.raises(NotAuthenticated):
                async with SmcpAgent(url, office="home", name="anna"):
                    raise AssertionError("it was let in")
            async with SmcpAgent(url, office="home", name="anna", token=key[1]) as agent:
                assert agent.computers() == ["computer"]
        with pytest.raises(NotAuthenticated):
            async with SmcpAgent(url.replace("127.0.0.1", "localhost"), office="home", name="anna"):
                raise AssertionError("it was let in")
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}  # as a web page has it after DNS rebinding
        for path, status in (("socket.io/?EIO=4&transport=polling", 403), ("readyz", 200)):
            async with aiohttp.ClientSession() as http, http.get(f"{url}/{path}", headers=rebound) as answer:
                assert answer.status == status
        assert await ended(process, signal.SIGINT) == 0
        assert not file.exists()


async def test_up_insecure_lets_everybody_in_without_a_key(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running("--config", str(config), "--insecure") as (process, url):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        async with SmcpAgent(url, office="home", name="anna") as agent:
            assert agent.computers() == ["computer"]
        assert "Key of this run" not in "\n".join(process.output)
