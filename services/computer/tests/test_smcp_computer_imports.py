"""A Computer loads what it needs: each module that it imports costs memory for as long as it runs."""

import subprocess
import sys

NOT_FOR_ALL = {
    *("cryptography", "jsonschema", "jsonschema_rs", "keyring", "socketio", "starlette", "uvicorn", "vrl_python"),
}
"""For MCP servers, for the secret store, for `--gateway`, for calls, or for results that are reshaped."""


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
    assert not {name.split(".")[0] for name in loaded.split()} & NOT_FOR_ALL
    assert server == "a"
