"""Which of the tests are collected."""

import pytest

from tests.e2e.worlds.kinds import twins_are_left_out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest counts what is left out here as deselected."""
    if not twins_are_left_out():
        return
    left_out = [item for item in items if item.get_closest_marker("twin") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("twin") is None]
