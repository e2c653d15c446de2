"""Real MCP servers that do what tests need; each runs as `python -m smcp_testing.mcp_servers.<name>`."""
