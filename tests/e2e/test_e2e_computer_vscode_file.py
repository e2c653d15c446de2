"""A Computer that runs the file of another MCP host as it is."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from smcp_agent import SmcpAgent
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

COMMAND = str(Path(sys.executable).with_name("smcp-computer"))


async def test_a_file_of_vs_code_runs_and_a_strict_computer_keeps_back_a_server_with_an_unknown_tool_name(
    nats_url: str, tmp_path: Path
) -> None:
    box = configs.stdio()["server_parameters"]
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".env").write_text("FROM_FILE=mine\n")
    file = tmp_path / ".vscode" / "mcp.json"
    servers = {
        "box": {**box, "env": {"OWN": "${input:own}"}, "envFile": "${workspaceFolder}/.env", "alwaysAllow": ["given"]},
        "typo": {**box, "env": {}, "forbidden_tools": ["ech"]},
    }
    inputs = [{"type": "pickString", "id": "own", "options": [{"label": "Own", "value": "own"}], "default": "own"}]
    file.write_text(f"// as VS Code keeps it\n{json.dumps({'servers': servers, 'inputs': inputs})}")
    async with gateway_world(nats_url) as world:
        process = await asyncio.create_subprocess_exec(
            *(COMMAND, "run", "--config", str(file), "--office", "office", "--name", "pc"),
            *("--gateway", world.url, "--strict"),
            stderr=PIPE,
        )
        try:
            async with SmcpAgent(world.url, office="office", name="anna") as agent:
                await eventually(lambda: agent.computers() == ["pc"], timeout=40)
                for variable, value in (("FROM_FILE", "mine"), ("OWN", "own")):
                    given = await agent.call_tool("pc", "given", {"variable": variable})
                    assert given.text == value
                names = {tool.name for tool in await agent.get_tools("pc")}
                assert "echo" in names
                assert not {name for name in names if "typo" in name}, "one server is listed, without prefixes"
            process.terminate()
            assert process.stderr is not None
            log = (await asyncio.wait_for(process.stderr.read(), 20)).decode()
            assert "forbidden_tools: 'ech': did you mean 'echo'? It is not a tool of this server" in log
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
