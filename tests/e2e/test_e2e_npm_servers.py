"""Public MCP servers of npm and PyPI in a world where every part is a process."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.scenarios import npm_servers
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import World

DOWNLOAD_S = 300.0

pytestmark = pytest.mark.timeout(2 * DOWNLOAD_S)


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


@pytest.fixture(autouse=True)
def _nothing_left_behind(_no_task_left: None) -> None:
    """In place of that of all tests: servers start helpers when they are used; the world looks for them at its end."""


async def test_time_and_git(world: World) -> None:
    with world.telling():
        await npm_servers.time_and_git_are_listed_and_called(world)


async def test_forbidden_and_renamed_tools(world: World) -> None:
    with world.telling():
        await npm_servers.a_forbidden_or_renamed_tool_is_not_callable_by_its_own_name(world)


async def test_tool_metadata_reaches_the_agent_as_json(world: World) -> None:
    with world.telling():
        await npm_servers.tool_metadata_reaches_the_agent_as_json(world)


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
