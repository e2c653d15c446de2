"""An office as an MCP server, for programs that speak MCP and not A2C-SMCP. Needs the extra `smcp-agent[mcp]`."""
