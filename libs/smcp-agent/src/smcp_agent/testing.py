"""Fixtures of pytest that run a whole system for the tests of an application.

    pytest_plugins = ["smcp_agent.testing"]  # in conftest.py

The system is `smcp up`, of the package smcp-standalone, as a process of its own on a free port: nothing is faked.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest


@pytest.fixture(scope="session")
def smcp_config() -> Mapping[str, Any]:
    """The Computer's configuration. Define a fixture of this name to run the MCP servers of your application."""
    return {"servers": {}}


@pytest.fixture(scope="session")
def smcp_system(smcp_config: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A system, with all of its MCP servers: the line of `smcp up --json`. Its office has one seat for an Agent."""
    config = tmp_path_factory.mktemp("smcp") / "computer.json"
    config.write_text(json.dumps(smcp_config), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_")}
    with subprocess.Popen(  # noqa: S603 -- our own command
        [sys.executable, "-m", "smcp_standalone", "up", "--json", "--port", "0", "--config", str(config)],
        env={**kept, "SMCP_CONFIRM": "allow"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as up:
        assert up.stdout is not None
        line = up.stdout.readline()
        if not line:
            pytest.fail("smcp up did not start: its log is in the captured standard error")
        try:
            ready = json.loads(line)
            if ready["failed"]:
                pytest.fail(f"MCP servers did not start: {json.dumps(ready['failed'], ensure_ascii=False)}")
            yield ready
        finally:
            up.terminate()
