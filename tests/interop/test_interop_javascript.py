"""The Agent in JavaScript of docs/guides/other-languages.md, as it stands there (npm: `socket.io-client`)."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers import configs
from tests.pages.markdown import ROOT, blocks

MODULES: Final = ROOT / "tests" / "e2e" / "npm" / "node_modules"
MISSING: Final = "socket.io-client is not installed (make setup-e2e, with Node.js)"


async def test_the_javascript_agent_of_the_guide_calls_a_tool(nats_url: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (MODULES / "socket.io-client").is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    [example] = [block.text for block in blocks(ROOT / "docs" / "guides" / "other-languages.md") if block.language]
    assert len(example.splitlines()) <= 13
    (tmp_path / "node_modules").symlink_to(MODULES)
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, "home", "computer", {"toolbox": configs.stdio()}),
    ):
        program = example.replace("http://127.0.0.1:8000", world.url).replace("show_zone", "echo")
        (tmp_path / "agent.mjs").write_text(program.replace('{ name: "Asia/Tokyo" }', '{ text: "你好" }'))
        process = await asyncio.create_subprocess_exec(
            node, "agent.mjs", cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert out.decode() == "你好\n"
