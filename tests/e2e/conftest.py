"""Which tests are collected, in which order, how long they may take, and what those with MCP servers from npm need."""

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.scenarios import npm_servers
from tests.e2e.worlds.kinds import TEST_S, twins_are_left_out

LONGEST: Final = (
    "test_e2e_outages.py",
    "test_e2e_faults.py",
    "test_e2e_rooms_under_concurrency.py",
    "test_e2e_restarts.py",
    "test_e2e_mixed_versions.py",
    "test_e2e_hostile_fuzz.py",
    "test_e2e_fair_share.py",
    "test_e2e_large_results.py",
    "test_packaging_compose.py",
    "test_e2e_bad_input.py",
    "test_e2e_scenarios.py",
    "test_e2e_docs_commands.py",
    "test_e2e_model_guide.py",
    "test_e2e_mcp_service.py",
    "test_e2e_computer_processes.py",
    "test_e2e_traces.py",
    "test_e2e_computer_commands.py",
    "test_deploy_demo.py",
    "test_e2e_computer_planned_restart.py",
    "test_e2e_real_servers.py",
    "test_packaging_wheels.py",
    "test_e2e_traces_over_processes.py",
    "test_packaging_images.py",
    "test_e2e_mcp_bridge.py",
    "test_e2e_mcp_tool_search.py",
    "test_e2e_mcp_conformance.py",
)
"""The files that take a worker more than a minute, which start first: at the end, the other workers would wait for one.
pytest-xdist starts those with the most tests first, unless it is told not to (`--no-loadscope-reorder`)."""


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
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))
    if not twins_are_left_out():
        return
    left_out = [item for item in items if item.get_closest_marker("twin") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("twin") is None]
