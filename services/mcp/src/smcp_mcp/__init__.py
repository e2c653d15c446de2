"""The MCP service: offers offices to MCP clients over Streamable HTTP."""
