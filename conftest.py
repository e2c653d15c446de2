"""Shared fixtures for every package's tests."""

import pytest

pytest_plugins = ["smcp_testing.plugin"]

# Scenarios hold most assertions of these tests. pytest shows the values of an assertion in modules that it rewrites.
# This does not stand in `tests/__init__.py`: the published clients' scripts import that without pytest.
pytest.register_assert_rewrite("tests.e2e")
