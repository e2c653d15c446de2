"""The MCP servers of this host: their processes, their sessions, and who keeps them running."""

from smcp_computer.mcp import client_only as client_only  # before anything imports the SDK
