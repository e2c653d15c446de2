"""A context server of MCP's 2026 era (discovery, `subscriptions/listen`); see `context`."""

from smcp_testing.mcp_servers.context import main

if __name__ == "__main__":
    main("2026")
