"""The documents of MCP servers: their metadata, read once and kept."""
