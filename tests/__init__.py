"""Tests of the whole system; without this module, tests/packaging would shadow the library of that name."""

import pytest

# Scenarios hold most assertions of these tests. pytest shows the values of an assertion in modules that it rewrites.
pytest.register_assert_rewrite("tests.e2e")
