"""The desktop: the windows of all MCP servers, read and organized."""
