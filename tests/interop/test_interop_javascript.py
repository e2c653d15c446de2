"""The Agent in JavaScript of docs/guides/other-languages.md, as it stands there (npm: `socket.io-client`)."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from smcp_testing.computer_world import native_computer
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers import configs
from tests.pages.markdown import ROOT, blocks

MODULES: Final = ROOT / "tests" / "e2e" / "npm" / "node_modules"
MISSING: Final = "socket.io-client is not installed (make setup-e2e, with Node.js)"


def node_and_example(directory: Path) -> tuple[str, str]:
    """The program of Node.js, and the example; its library is put into the directory."""
    node = shutil.which("node")
    if node is None or not (MODULES / "socket.io-client").is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    [example] = [block.text for block in blocks(ROOT / "docs" / "guides" / "other-languages.md") if block.language]
    assert len(example.splitlines()) <= 13
    (directory / "node_modules").symlink_to(MODULES)
    return node, example


async def ran(node: str, program: str, directory: Path, **environment: str) -> tuple[int | None, str, str]:
    """Exit code, standard output, standard error."""
    (directory / "agent.mjs").write_text(program)
    process = await asyncio.create_subprocess_exec(
        node,
        "agent.mjs",
        cwd=directory,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_javascript_agent_of_the_guide_calls_a_tool(nats_url: str, tmp_path: Path) -> None:
    node, example = node_and_example(tmp_path)
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, "home", "computer", {"toolbox": configs.stdio()}),
    ):
        program = example.replace("http://127.0.0.1:8000", world.url).replace("show_zone", "echo")
        code, out, err = await ran(node, program.replace('{ name: "Asia/Tokyo" }', '{ text: "你好" }'), tmp_path)
        assert (code, out) == (0, "你好\n"), err


async def test_the_javascript_agent_of_the_guide_says_that_its_token_is_wrong(tmp_path: Path) -> None:
    node, example = node_and_example(tmp_path)
    async with fake_gateway() as gateway:
        gateway.connect_error = {"code": 401, "message": "the token is not known"}
        program = example.replace("http://127.0.0.1:8000", gateway.url)
        code, out, err = await ran(node, program, tmp_path, SMCP_TOKEN="wrong")
        assert (code, out) == (1, "")
        assert "Error: the token is not known" in err
        assert gateway.received == []
