"""The MCP service in this process, and the MCP SDK's clients that use its offices."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.client import Client
from mcp.client.session import ElicitationFnT, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import TextContent

from smcp_mcp.app import open_mcp
from smcp_mcp.settings import McpSettings
from smcp_service.health import Readiness
from smcp_service.metrics import Metrics

INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
"""The first request of a client up to MCP 2025-11-25."""
META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""Of each request of a client of MCP 2026-07-28."""


@dataclass
class Service:
    url: str
    metrics: Metrics
    readiness: Readiness
    stop: Callable[[], Awaitable[None]]
    """Stop it before its block ends."""

    def office(self, name: str = "office") -> str:
        """The URL for clients of that office."""
        return f"{self.url}/mcp/{name}"

    def counted(self, sample: str, **labels: str) -> float:
        """A sample of its metrics now."""
        for family in self.metrics.collect():
            for each in family.samples:
                if each.name == sample and each.labels == labels:
                    return float(each.value)
        raise AssertionError(f"no sample {sample} {labels}")


@dataclass
class OfficeClient:
    client: Client
    heard: list[str] = field(default_factory=list)
    """The methods of the notifications so far."""

    async def names(self) -> list[str]:
        return [each.name for each in (await self.client.list_tools(cache_mode="bypass")).tools]

    async def text(self, tool: str, **arguments: Any) -> str:
        """What a tool says; `!` before it for an error."""
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result.content[0], TextContent)
        return f"{'!' if result.is_error else ''}{result.content[0].text}"


@asynccontextmanager
async def mcp_service(gateway_url: str, **settings: Any) -> AsyncIterator[Service]:
    metrics, readiness = Metrics(), Readiness()
    chosen = McpSettings(**{"url": gateway_url, "mcp_port": 0, **settings})
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(open_mcp(chosen, readiness, metrics))
        yield Service(url, metrics, readiness, stack.aclose)
    for task in asyncio.all_tasks():  # sse-starlette's, one for the life of an event loop
        if getattr(task.get_coro(), "__name__", "") == "_shutdown_watcher":
            task.cancel()


@asynccontextmanager
async def office_client(
    url: str, era: str = "legacy", on_input: ElicitationFnT | None = None, /, **headers: str
) -> AsyncIterator[OfficeClient]:
    """A client of the office at that URL, which sends those headers, too. `on_input`: asks its user."""
    heard: list[str] = []

    async def hear(message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            heard.append(message.method)

    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
        transport = streamable_http_client(url, http_client=http)
        opened = Client(transport, mode=era, message_handler=hear, elicitation_callback=on_input)
        client = await stack.enter_async_context(opened)
        yield OfficeClient(client, heard)
