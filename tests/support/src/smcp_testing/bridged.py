"""The MCP server of an office, in this process, and the MCP SDK's client of either era that uses it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.session import ElicitationFnT, IncomingMessage
from mcp.shared.memory import create_client_server_memory_streams

from smcp_agent import SmcpAgent
from smcp_agent.llm import NamedTool
from smcp_agent.mcp import tools
from smcp_agent.mcp.bridge import OfficeServer
from smcp_agent.mcp.resources import Context
from smcp_agent.mcp.tools import ToolListOptions
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

    async def text(self, name: str, /, **arguments: Any) -> str:
        """What a tool says; `!` before it for an error."""
        result = await self.client.call_tool(name, arguments)
        assert isinstance(result.content[0], types.TextContent)
        return f"{'!' if result.is_error else ''}{result.content[0].text}"


@asynccontextmanager
async def bridged(
    gateway: FakeGateway | str,
    era: str = "legacy",
    on_input: ElicitationFnT | None = None,
    listing: ToolListOptions | None = None,
) -> AsyncIterator[Bridged]:
    """A bridge with its one client, as `smcp-agent mcp` serves it. `gateway`: or a URL; `on_input`: asks its user."""
    url = gateway if isinstance(gateway, str) else gateway.url
    async with SmcpAgent(url, office="office", name="bridge", max_away=tools.AWAY_S) as agent:
        async with _served(OfficeServer(agent, listing=listing).run, agent, era, on_input) as bridge:
            yield bridge


@asynccontextmanager
async def shared_office(
    gateway: FakeGateway,
    may: Callable[[Context | None, NamedTool], bool] = lambda _, __: True,
    listing: ToolListOptions | None = None,
    may_ask: Callable[[Context, str], bool] = lambda _, __: True,
) -> AsyncIterator[Callable[[str], AbstractAsyncContextManager[Bridged]]]:
    """A bridge for many clients: what it gives connects one of the named era."""
    async with SmcpAgent(gateway.url, office="office", name="bridge", max_away=tools.AWAY_S) as agent:
        office = OfficeServer(agent, may=may, may_ask=may_ask, listing=listing)

        async def run(streams: tuple[Any, Any]) -> None:
            await office.server.run(*streams, office.server.create_initialization_options())

        async with office.following():
            yield partial(_served, run, agent)


@asynccontextmanager
async def _served(
    run: Callable[[tuple[Any, Any]], Awaitable[None]],
    agent: SmcpAgent,
    era: str,
    on_input: ElicitationFnT | None = None,
) -> AsyncIterator[Bridged]:
    heard: list[str] = []

    async def hear(message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            heard.append(message.method)

    async with create_client_server_memory_streams() as (ours, theirs):

        @asynccontextmanager
        async def transport() -> AsyncIterator[Any]:
            yield ours

        server = asyncio.ensure_future(run(theirs))
        async with Client(transport(), mode=era, message_handler=hear, elicitation_callback=on_input) as client:
            yield Bridged(client, agent, heard)
        await ours[1].aclose()
        async with asyncio.timeout(10):
            await server
