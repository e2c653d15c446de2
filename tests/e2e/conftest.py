"""Which of the tests are collected, how long they may take, and what those with MCP servers from npm need."""

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.scenarios import npm_servers
from tests.e2e.worlds.kinds import TEST_S, containers_are_demanded


@pytest.fixture(scope="session")
def without_node() -> str:
    """What is missing for the servers from npm; empty where nothing is."""
    if shutil.which("npx") is None:
        return "Node.js is missing: the MCP servers from npm are not tested"
    if not (npm_servers.NPM / "node_modules" / "@modelcontextprotocol").is_dir():
        return "the MCP servers from npm are not installed (make setup-e2e): they are not tested"
    return ""


@pytest.fixture
def node(without_node: str) -> None:
    """Node.js and the servers from npm: without them it is a failure in CI, and one printed line elsewhere."""
    if without_node and os.environ.get("CI") == "true":
        pytest.fail(without_node)
    if without_node:
        pytest.skip(without_node)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest counts what is left out here as deselected."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))
    if not containers_are_demanded():
        return
    left_out = [item for item in items if item.get_closest_marker("also_in_containers") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("also_in_containers") is None]
