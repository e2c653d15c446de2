"""The MCP servers of the protocol page's two scenarios: `hello`, and `browser_navigate`."""

from typing import Any

from mcp.server.mcpserver import MCPServer

server: MCPServer[Any] = MCPServer("hello", log_level="WARNING")


@server.tool(description="Say hello to someone.")
def hello(name: str = "World") -> str:
    return f"Hello, {name}!"


@server.tool(description="Navigate to a URL.")
def browser_navigate(url: str) -> str:
    return url


if __name__ == "__main__":
    server.run("stdio")
