"""The MCP server of an office, in this process, and the MCP SDK's client of either era that uses it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.session import IncomingMessage
from mcp.shared.memory import create_client_server_memory_streams

from smcp_agent import SmcpAgent
from smcp_agent.mcp.bridge import OfficeServer
from smcp_testing.fake_gateway import FakeGateway

ERAS = pytest.mark.parametrize("era", ["legacy", "2026-07-28"])


@dataclass
class Bridged:
    client: Client
    agent: SmcpAgent
    heard: list[str] = field(default_factory=list)
    """The methods of the notifications so far."""

    async def names(self) -> list[str]:
        return [each.name for each in (await self.client.list_tools(cache_mode="bypass")).tools]

    async def text(self, name: str, **arguments: Any) -> str:
        """What a tool says; `!` before it for an error."""
        result = await self.client.call_tool(name, arguments)
        assert isinstance(result.content[0], types.TextContent)
        return f"{'!' if result.is_error else ''}{result.content[0].text}"


@asynccontextmanager
async def bridged(gateway: FakeGateway, era: str = "legacy") -> AsyncIterator[Bridged]:
    heard: list[str] = []

    async def hear(message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            heard.append(message.method)

    async with (
        SmcpAgent(gateway.url, office="office", name="bridge") as agent,
        create_client_server_memory_streams() as (ours, theirs),
    ):

        @asynccontextmanager
        async def transport() -> AsyncIterator[Any]:
            yield ours

        server = asyncio.create_task(OfficeServer(agent).run(theirs))
        async with Client(transport(), mode=era, message_handler=hear) as client:
            yield Bridged(client, agent, heard)
        await ours[1].aclose()
        async with asyncio.timeout(10):
            await server
