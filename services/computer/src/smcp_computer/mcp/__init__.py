"""The MCP servers of this host: their processes, their sessions, and who keeps them running."""
