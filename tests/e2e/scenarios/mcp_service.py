"""A `smcp-mcp` beside a world, for scenarios of MCP clients that connect over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from smcp_testing.ports import Ports
from tests.e2e.worlds.layout import command
from tests.e2e.worlds.process import ForkedProcess
from tests.e2e.worlds.world import World, child_environment


@asynccontextmanager
async def mcp_service(world: World, directory: Path) -> AsyncIterator[str]:
    """The URL of a `smcp-mcp`, while the body runs; an office's MCP server is at `/mcp/{office}`."""
    ports = Ports()
    port, health = ports.take(), ports.take()
    environment = child_environment(world.mark, SMCP_URL=world.url(0), SMCP_HEALTH_PORT=str(health))
    arguments = [command("smcp-mcp"), "--port", str(port)]
    service = ForkedProcess("mcp", arguments, environment, directory, f"http://127.0.0.1:{health}/readyz")
    await service.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        assert await service.stop() == 0
