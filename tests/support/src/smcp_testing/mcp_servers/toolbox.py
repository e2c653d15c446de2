"""An MCP server with tools that work, wait, fail, die and change.

    python -m smcp_testing.mcp_servers.toolbox [--transport stdio|streamable|sse] [--port N] [--log FILE] [--name NAME]
        [--requests FILE] [--hold WHAT ...]

Over HTTP it prints its URL to standard output once it serves. With `--log` each call of `append`, and each start and
cancel of `sleep`, is a line of that file. With `--requests` each HTTP request is one: see `http_door`.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

from smcp_testing.mcp_servers.http_door import HttpDoor
from smcp_testing.mcp_servers.http_serving import serve_on_loopback
from smcp_testing.mcp_servers.toolbox_tools import TOOLS, log_to


def build(name: str, log: Path | None) -> MCPServer[Any]:
    if log is not None:
        log_to(log)
    return MCPServer(name, tools=TOOLS, log_level="WARNING")


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
