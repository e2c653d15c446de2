"""Public MCP servers of npm and PyPI in a world where every part is a process, and the demo with them."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from smcp_testing.waiting import eventually
from tests.e2e.scenarios import npm_servers
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import World

DOWNLOAD_S = 300.0

pytestmark = [pytest.mark.keeps_processes, pytest.mark.timeout(2 * DOWNLOAD_S)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What server-filesystem may see."""
    return tmp_path_factory.mktemp("files").resolve()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, files: Path, without_node: str) -> Iterator[World]:
    for package in npm_servers.PYPI:  # the first time, uvx downloads them: not within the time that a start may take
        command = [npm_servers.uvx(), package, "--help"]
        subprocess.run(command, check=True, timeout=DOWNLOAD_S, stdout=subprocess.DEVNULL)
    place = npm_servers.place(files, node=not without_node)
    opened = open_processes(tmp_path_factory.mktemp("npm"), gateways=2, registries=1, more=[place])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


async def test_time_and_git(world: World) -> None:
    with world.telling():
        await npm_servers.time_and_git_are_listed_and_called(world)


async def test_tool_names_of_python_servers_are_legal_and_unique(world: World) -> None:
    with world.telling():
        await npm_servers.listed_names_are_legal_unique_and_callable_by_a_model(world, "history", "convert_time")


async def _names(world: World, _: Path) -> None:
    tools = ("history", "convert_time", "everything__echo", "toolbox__echo", "ls")
    await npm_servers.listed_names_are_legal_unique_and_callable_by_a_model(world, *tools)


async def _everything(world: World, _: Path) -> None:
    await npm_servers.everything_is_listed_and_called(world)


# one test, so that it is one line where they are skipped
@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("scenario", [_names, _everything, npm_servers.files_are_read_and_forbidden_tools_are_refused])
async def test_servers_from_npm(world: World, files: Path, scenario: Callable[[World, Path], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world, files)


REPOSITORY = Path(__file__).parents[2]


@pytest.mark.timeout(DOWNLOAD_S + 120)
def test_the_demo_prints_both_results_and_loses_no_call_when_a_gateway_is_killed() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("these sources are not a git repository")
    told = subprocess.run(
        [sys.executable, "-m", "bench.demo"],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_S,
    )
    assert told.returncode == 0, told.stderr
    assert len(re.findall(r"^  [0-9a-f]{8} \S", told.stdout, re.MULTILINE)) == 3
    assert "Europe/Berlin" in told.stdout
    assert len(re.findall(r"\d ms, trace id [0-9a-f]{32}", told.stdout)) == 2
    said = " ".join(told.stdout.split())
    killed = re.search(r"with (\d+) calls in flight.* all (\d+) returned.* none failed", said)
    assert killed is not None, told.stdout
    assert killed[1] == killed[2] == "8"


async def test_ctrl_c_ends_the_demo_with_all_that_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.demo"]
    env = {**os.environ, "TMPDIR": str(tmp_path), "UV_OFFLINE": "1"}
    with subprocess.Popen(command, cwd=REPOSITORY, env=env, start_new_session=True, stderr=subprocess.PIPE) as demo:
        started = psutil.Process(demo.pid)
        await eventually(
            lambda: any("nats-server" in each.name() for each in started.children(recursive=True)), timeout=60
        )
        children = started.children(recursive=True)
        os.killpg(demo.pid, signal.SIGINT)
        _, said = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert said.decode().splitlines()[-1] == "stopped before its end"
    assert b"Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    await eventually(lambda: not any(map(lives, children)))


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
