"""A context server of MCP's 2025 era (the handshake, `resources/subscribe`); see `context`."""

from smcp_testing.mcp_servers.context import main

if __name__ == "__main__":
    main("2025")
