"""An MCP server with tools that echo, fail and take their time. Runs in the environment of the published package."""

import asyncio
import sys
from pathlib import Path

from mcp.server.fastmcp import Context, FastMCP, Image

server = FastMCP("tools")
journal = Path(sys.argv[1])
"""What ran and what was cancelled stands there."""


def write(line: str) -> None:
    with journal.open("a") as file:
        file.write(line + "\n")


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
    write("slow")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        write("cancelled")
        raise
    return "slept"


@server.tool()
async def picture(size: int) -> Image:
    return Image(data=bytes(size), format="png")


@server.tool()
async def one_more(name: str, context: Context) -> str:
    """List one more tool from now on, and tell so."""
    server.add_tool(echo, name=name)
    await context.session.send_tool_list_changed()
    return name


@server.resource("note://one", name="one")
def note() -> str:
    return "a note"


@server.resource("window://tools.example/main", name="window")
def window() -> str:
    return "what the window shows"


if __name__ == "__main__":
    server.run()
