"""A Computer loads what it needs: each module that it imports costs memory for as long as it runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOT_FOR_ALL = {
    *("cryptography", "jsonschema", "jsonschema_rs", "keyring", "opentelemetry.sdk", "requests"),
    *("socketio", "starlette", "uvicorn", "vrl_python"),
}
"""For MCP servers, for the secret store, for `--gateway`, for calls, for traces, or for results that are reshaped."""


def test_a_computer_imports_no_mcp_server_and_who_wants_one_gets_it_nevertheless() -> None:
    code = (
        "import sys, smcp_computer.main, smcp_computer.app\n"
        "print(*sys.modules)\n"
        "from mcp.server.mcpserver import MCPServer\n"
        "print(MCPServer('a').name)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded, server = run.stdout.splitlines()
    assert "mcp.client.client" in loaded.split()
    assert "mcp.server" not in loaded.split()
    assert not NOT_FOR_ALL & set(loaded.split())
    assert server == "a"


@pytest.mark.parametrize(("way", "loaded"), [("nats", []), ("gateway", ["aiohttp.client", "aiohttp.connector"])])
def test_over_nats_a_computer_serves_http_without_the_client_of_aiohttp(
    way: str, loaded: list[str], tmp_path: Path
) -> None:
    (tmp_path / "servers.json").write_text('{"servers": {}}')
    options = ("--config", str(tmp_path / "servers.json"), "--office", "o", "--name", "n", "--check-config")
    connected = ("--gateway", "http://127.0.0.1:1") if way == "gateway" else ()
    code = (
        "import sys\n"
        "from smcp_computer.main import app\n"
        "app(standalone_mode=False)\n"
        "from aiohttp import web\n"
        "print(web.Application.__module__, *({'aiohttp.client', 'aiohttp.connector'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "run", *options, *connected]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_")}
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environ)
    server, *client = run.stdout.splitlines()[-1].split()
    assert server == "aiohttp.web_app"
    assert sorted(client) == loaded
