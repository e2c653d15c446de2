"""An MCP server with tools that echo, fail and take their time. Runs in the environment of the published package."""

import asyncio
import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP

server = FastMCP("tools")


@server.tool()
async def echo(text: str) -> str:
    return text


@server.tool()
async def blow_up(size: int) -> str:
    return "x" * size


@server.tool()
async def fail() -> str:
    raise ValueError("it failed")


@server.tool()
async def slow(seconds: float) -> str:
    """Sleep; whether it was cancelled stands in the file that is the server's argument."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        with Path(sys.argv[1]).open("a") as journal:
            journal.write("cancelled\n")
        raise
    return "slept"


if __name__ == "__main__":
    server.run()
