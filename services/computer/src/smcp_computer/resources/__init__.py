"""Resources of MCP servers: what they list, who serves a URI, and who is told of changes."""
