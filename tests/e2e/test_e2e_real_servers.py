"""MCP servers that others wrote, run as users run them: `uvx` for those of PyPI, Node for those of npm."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smcp_agent import SmcpAgent
from smcp_standalone.nats_server import find_command
from smcp_standalone.settings import uvx_server
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.standalone import open_standalone
from tests.e2e.worlds.world import LAB

REPOSITORY = Path(__file__).parents[2]
NPM_BIN = Path(__file__).parent / "npm" / "node_modules" / ".bin"
DOWNLOAD_S = 300.0


def fetched(package: str, *arguments: str) -> dict[str, Any]:
    """The configuration of a server from PyPI, after its first download, which takes its time."""
    uvx = find_command("uvx")
    assert uvx is not None, "uvx is a part of the development environment"
    subprocess.run([uvx, "--quiet", package, "--help"], check=True, capture_output=True, timeout=DOWNLOAD_S)
    return uvx_server(uvx, package, *arguments)


def installed(name: str, *arguments: str) -> dict[str, Any]:
    """The configuration of a server from npm. Skips where there is no Node, but for CI, where it fails."""
    if not (NPM_BIN / name).exists() or shutil.which("node") is None:
        missing = f"Node or {name} is missing: make setup-e2e"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    # npm's commands look for `node` in the PATH, which an MCP server is given.
    return {"type": "stdio", "server_parameters": {"command": str(NPM_BIN / name), "args": list(arguments)}}


@pytest.mark.timeout(2 * DOWNLOAD_S + 120)
async def test_servers_from_pypi_answer_an_agent(tmp_path: Path) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("these sources are no git repository")
    servers = {
        "time": fetched("mcp-server-time"),
        "git": fetched("mcp-server-git", "--repository", str(REPOSITORY)),
    }
    async with (
        open_standalone(tmp_path, more=[Place("host-real", LAB, "real", servers)]) as world,
        SmcpAgent(world.url(), office=LAB, name="caller") as agent,
    ):
        names = {tool.name for tool in await agent.get_tools("real")}
        assert {"convert_time", "get_current_time", "git_log", "git_status"} <= names
        when = {"source_timezone": "Asia/Shanghai", "time": "16:30", "target_timezone": "Asia/Tokyo"}
        converted = await agent.call_tool("real", "convert_time", when)
        assert json.loads(converted.text)["target"]["datetime"].endswith("17:30:00+09:00")
        log = await agent.call_tool("real", "git_log", {"repo_path": str(REPOSITORY), "max_count": 1})
        assert re.search(r"Commit: '?[0-9a-f]{40}", log.text)
        wrong = await agent.call_tool("real", "convert_time", {**when, "source_timezone": "Nowhere"})
        assert wrong.is_error


async def test_servers_from_npm_answer_an_agent(tmp_path: Path) -> None:
    shared = tmp_path / "shared files"
    shared.mkdir()
    (shared / "notes.txt").write_text("你好", encoding="utf-8")
    servers = {
        "everything": installed("mcp-server-everything"),
        "files": installed("mcp-server-filesystem", str(shared)),
    }
    async with (
        open_standalone(tmp_path, more=[Place("host-real", LAB, "real", servers)]) as world,
        SmcpAgent(world.url(), office=LAB, name="caller") as agent,
    ):
        # The toolbox has an `echo`, too.
        names = {tool.name for tool in await agent.get_tools("real")}
        assert {"everything__echo", "toolbox__echo"} <= names
        said = await agent.call_tool("real", "everything__echo", {"message": "through Node"})
        assert "through Node" in said.text
        read = await agent.call_tool("real", "read_text_file", {"path": str(shared / "notes.txt")})
        assert "你好" in read.text
        outside = await agent.call_tool("real", "read_text_file", {"path": "/etc/hostname"})
        assert outside.is_error
        image = await agent.call_tool("real", "get-tiny-image", {})
        assert [block["type"] for block in image.raw["content"] if block["type"] == "image"] == ["image"]


@pytest.mark.timeout(DOWNLOAD_S + 120)
def test_the_demo_prints_both_results_and_loses_no_call_when_a_gateway_is_killed() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("these sources are no git repository")
    told = subprocess.run(
        [Path(sys.executable).parent / "smcp", "demo", "--repository", REPOSITORY],
        check=False,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_S,
    )
    assert told.returncode == 0, told.stderr
    assert len(re.findall(r"^│ [0-9a-f]{8} \S", told.stdout, re.MULTILINE)) == 3
    assert "Europe/Berlin" in told.stdout
    assert len(re.findall(r"\d ms, trace id [0-9a-f]{32}", told.stdout)) == 2
    said = " ".join(told.stdout.split())
    killed = re.search(r"with (\d+) calls in flight.* all (\d+) returned.* none failed", said)
    assert killed is not None, told.stdout
    assert killed[1] == killed[2] == "8"
