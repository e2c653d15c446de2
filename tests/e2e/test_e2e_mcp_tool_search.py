"""An office with a thousand tools, for MCP clients: real Computers and MCP servers behind `smcp-agent mcp`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from smcp_testing.bridged import ERAS
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually
from tests.e2e.worlds.layout import Place, command
from tests.e2e.worlds.standalone import open_standalone
from tests.e2e.worlds.world import World

OFFICE: Final = "wide"
COUNT: Final = 1000
WIDE: Final = Place("host-wide", OFFICE, "wide", {"wide": configs.stdio("many_tools", "--tools", str(COUNT))})
DESK: Final = Place("host-desk", OFFICE, "desk")
START_S: Final = 240.0
TOOL: Final = "export_invoice_7"

pytestmark = [pytest.mark.keeps_processes, pytest.mark.timeout(2 * START_S)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    opened = open_standalone(tmp_path_factory.mktemp("search"), more=[WIDE, DESK])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@asynccontextmanager
async def connected(world: World, era: str, *options: str) -> AsyncIterator[Client]:
    arguments = ["mcp", "--url", world.url(0), "--office", OFFICE, *options]
    server = StdioServerParameters(command=command("smcp-agent"), args=arguments)
    async with Client(server, mode=era, read_timeout_seconds=START_S) as client:
        yield client


async def names(client: Client) -> list[str]:
    return [each.name for each in (await client.list_tools(cache_mode="bypass")).tools]


async def found(client: Client, query: str) -> list[dict[str, Any]]:
    result = await client.call_tool("search_tools", {"query": query})
    assert result.structured_content is not None, result.content
    tools: list[dict[str, Any]] = result.structured_content["tools"]
    return tools


async def _finds(client: Client, query: str) -> bool:
    return [each["name"] for each in await found(client, query)][:1] == [query]


@ERAS
async def test_one_tool_of_a_thousand_is_found_described_and_called(world: World, era: str) -> None:
    with world.telling():
        async with connected(world, era, "--always-list", "delete_page_*") as client:
            await eventually(lambda: _finds(client, TOOL), timeout=START_S)
            listed = await client.list_tools(cache_mode="bypass")
            always = [each for each in listed.tools if each.name.startswith("delete_page_")]
            assert len(always) == COUNT // 100
            search = listed.model_copy(update={"tools": [each for each in listed.tools if each not in always]})
            assert [each.name for each in search.tools] == ["search_tools", "describe_tool", "call_tool"]
            assert len(search.model_dump_json(by_alias=True, exclude_none=True).encode()) / 2.5 < 1000

            first, *_ = await found(client, "export the invoice of tenant 7")
            assert (first["name"], first["computer"]) == (TOOL, "wide")
            described = (await client.call_tool("describe_tool", {"name": TOOL})).structured_content
            assert described is not None
            assert described["inputSchema"]["required"] == ["id"]
            called = await client.call_tool("call_tool", {"name": TOOL, "arguments": {"id": "x"}})
            assert called.structured_content == {"tool": TOOL, "arguments": {"id": "x"}}
            direct = await client.call_tool(TOOL, {"id": "x"})
            assert direct == called
            refused = await client.call_tool("call_tool", {"name": TOOL, "arguments": {"id": 5}})
            assert refused.is_error
            assert "id" in str(refused.content)

            desk = world.computer(OFFICE, DESK.name).part
            await eventually(lambda: _on(client, "echo", {"desk", "wide"}), timeout=START_S)
            await desk.kill()
            await eventually(lambda: _on(client, "echo", {"wide"}), timeout=START_S)
            assert await _finds(client, TOOL)
            await desk.start()
            await eventually(lambda: _on(client, "echo", {"desk", "wide"}), timeout=START_S)


async def _on(client: Client, query: str, computers: set[str]) -> bool:
    return {each["computer"] for each in await found(client, query)} == computers


async def test_all_of_a_thousand_tools_are_listed_where_that_is_wanted(world: World) -> None:
    with world.telling():
        async with connected(world, "legacy", "--tools", "all") as client:
            await eventually(lambda: _lists(client, TOOL), timeout=START_S)
            assert len(await names(client)) > COUNT


async def _lists(client: Client, name: str) -> bool:
    return name in await names(client)
