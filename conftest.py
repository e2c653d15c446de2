"""Shared fixtures for every package's tests."""

pytest_plugins = ["smcp_testing.plugin"]
