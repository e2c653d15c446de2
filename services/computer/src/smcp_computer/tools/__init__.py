"""The tools of all MCP servers as one list: names, metadata, results."""
