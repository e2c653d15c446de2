"""MCP's conformance suite against `smcp-mcp` and `smcp-agent mcp`, with the MCP server it expects behind a Computer.

`mcp_conformance.yaml` lists what does not pass, and why. The suite wants a newer Node.js than many systems have: npm
brings it.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from smcp_testing.mcp_servers import configs
from tests.e2e.scenarios.mcp_service import mcp_service
from tests.e2e.scenarios.npm_servers import NPM
from tests.e2e.worlds.layout import Place, command
from tests.e2e.worlds.standalone import open_standalone
from tests.e2e.worlds.world import World

EXCEPTIONS: Final = Path(__file__).with_name("mcp_conformance.yaml")
SUITE: Final = NPM / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
SUITE_S: Final = 300.0
REVISIONS: Final = {"2025-11-25": "2025", "2026-07-28": "2026"}
"""Revisions of MCP whose requirements are tested, with the era of the MCP server behind the Computer."""

pytestmark = [pytest.mark.keeps_processes, pytest.mark.timeout(2 * SUITE_S), pytest.mark.usefixtures("node")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    places = [
        Place(
            f"host-{era}",
            f"conformance-{era}",
            era,
            {"suite": configs.stdio("conformance", "--era", era)},
            toolbox=False,
        )
        for era in REVISIONS.values()
    ]
    opened = open_standalone(tmp_path_factory.mktemp("conformance"), more=places)
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


async def failures(url: str, revision: str, *options: str | Path) -> str:
    """What the suite says about the MCP server at that URL; empty where it passes."""
    node = next(NPM.glob("node_modules/node-*/bin/node"))
    process = await asyncio.create_subprocess_exec(
        *(node, SUITE, "server", "--url", url, "--requirements", revision, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SUITE_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return "" if process.returncode == 0 else said.decode().partition("=== SUMMARY ===")[2]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_an_office_meets_the_requirements_of_mcp(world: World, tmp_path: Path, revision: str) -> None:
    with world.telling():
        async with mcp_service(world, tmp_path) as url:
            office = f"{url}/mcp/conformance-{REVISIONS[revision]}"
            assert await failures(office, revision, "--expected-failures", EXCEPTIONS) == ""


async def test_the_bridge_over_stdio_meets_the_requirements_of_mcp(world: World, tmp_path: Path) -> None:
    exceptions = tmp_path / "exceptions.yaml"  # the suite speaks HTTP alone, which the bridge does not: no sessions
    exceptions.write_text(EXCEPTIONS.read_text() + "  - server-sse-multiple-streams\n")
    office = ("--url", world.url(0), "--office", "conformance-2025", "--tools", "all")
    with world.telling():
        async with configs.over_http(command("smcp-agent"), "mcp", *office) as bridge:
            assert await failures(bridge.url, "2025-11-25", "--expected-failures", exceptions) == ""


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_mcp_server_behind_the_office_meets_all_requirements_itself(revision: str) -> None:
    async with configs.http_conformance() as server:
        assert await failures(server.url, revision) == ""
