"""An MCP server with tools that work, wait, fail, die and change.

    python -m smcp_testing.mcp_servers.toolbox [--transport stdio|streamable|sse] [--port N] [--log FILE] [--name NAME]
        [--requests FILE] [--hold WHAT ...]

Over HTTP it prints its URL to standard output once it serves. With `--log` each call of `append`, and each start and
cancel of `sleep`, is a line of that file. With `--requests` each HTTP request is one: see `http_door`.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations

from smcp_testing.mcp_servers.http_door import HttpDoor
from smcp_testing.mcp_servers.http_serving import serve_on_loopback


def build(name: str, log: Path | None) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer(name, log_level="WARNING")

    def write(line: str) -> None:
        if log is not None:
            with log.open("a") as file:
                file.write(line + "\n")

    @server.tool()
    def echo(text: str) -> str:
        """Give the text back."""
        return text

    @server.tool(annotations=ToolAnnotations(read_only_hint=True, title="Adder"), meta={"owner": "math", "levels": [1]})
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def sleep(seconds: float, mark: str = "", until: str = "") -> str:
        """Wait, at most until that file is there; a cancel is written to the log."""
        write(f"sleep {mark}")
        try:
            with anyio.move_on_after(seconds):
                while not (until and await anyio.Path(until).exists()):  # noqa: ASYNC110 -- another process makes it
                    await anyio.sleep(0.05 if until else seconds)
        except anyio.get_cancelled_exc_class():
            write(f"cancelled {mark}")
            raise
        return f"slept {seconds}"

    @server.tool()
    def block(seconds: float) -> str:
        """Hold up the whole server: nothing is read or answered meanwhile."""
        time.sleep(seconds)
        return "back"

    @server.tool()
    def fail(message: str = "it failed") -> str:
        """Raise."""
        raise RuntimeError(message)

    @server.tool()
    def die() -> str:
        """End the process in the middle of the call."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    @server.tool(structured_output=False)
    def big(size: int) -> str:
        """A text of `size` bytes."""
        return "x" * size

    @server.tool()
    def append(mark: str) -> str:
        """Write a line to the log."""
        write(mark)
        return mark

    @server.tool()
    def pid() -> int:
        """The server's process id."""
        return os.getpid()

    @server.tool()
    def spawn() -> int:
        """Start a grandchild that does not end by itself; gives its process id."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
        return child.pid

    @server.tool()
    def given(variable: str) -> str | None:
        """An environment variable of the server."""
        return os.environ.get(variable)

    @server.tool()
    def keys(value: dict[str, Any]) -> dict[str, Any]:
        """The object as it arrived."""
        return value

    @server.tool()
    def with_meta() -> CallToolResult:
        """A result with metadata of its own."""
        return CallToolResult(content=[TextContent(type="text", text="hi")], _meta={"mine": 1, "a2c_timeout": True})

    @server.tool()
    async def trace(ctx: Context[Any, Any]) -> str | None:
        """The `traceparent` that came with the call."""
        meta = ctx.request_context.meta or {}
        found = meta.get("traceparent")
        return found if isinstance(found, str) else None

    @server.tool()
    async def progress(steps: int, ctx: Context[Any, Any], until: str = "") -> str:
        """Report progress while it runs, and end when the file `until` is there."""
        for step in range(steps):
            await ctx.report_progress(step, steps)
        while until and not Path(until).exists():  # noqa: ASYNC110 -- of another process
            await anyio.sleep(0.01)
        return "done"

    def extra() -> str:
        """A tool that comes and goes."""
        return "extra"

    @server.tool()
    async def add_tool(name: str, ctx: Context[Any, Any]) -> str:
        """List one more tool from now on, and tell so."""
        server.add_tool(extra, name=name)
        await _tell(ctx)
        return name

    @server.tool()
    async def remove_tool(name: str, ctx: Context[Any, Any]) -> str:
        """List a tool no more, and tell so."""
        server.remove_tool(name)
        await _tell(ctx)
        return name

    return server


async def _tell(ctx: Context[Any, Any]) -> None:
    await ctx.notify_tools_changed()
    if not (ctx.protocol_version or "").startswith("2026"):
        await ctx.session.send_tool_list_changed()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "streamable", "sse"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--name", default="toolbox")
    parser.add_argument("--requests", type=Path)
    parser.add_argument("--hold", action="append", default=[])
    options = parser.parse_args()
    server = build(options.name, options.log)
    if options.transport == "stdio":
        server.run("stdio")
        return
    streamable = options.transport == "streamable"
    app = HttpDoor(server.streamable_http_app() if streamable else server.sse_app(), options.requests, options.hold)
    asyncio.run(serve_on_loopback(app, options.port, "mcp" if streamable else "sse"))


if __name__ == "__main__":
    main()
