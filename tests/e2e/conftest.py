"""Which of the tests are collected, and how long they may take."""

from pathlib import Path

import pytest

from tests.e2e.worlds.kinds import TEST_S, twins_are_left_out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest counts what is left out here as deselected."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))
    if not twins_are_left_out():
        return
    left_out = [item for item in items if item.get_closest_marker("twin") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("twin") is None]
