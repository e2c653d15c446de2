"""The MCP servers of this host: their processes, their sessions, and who keeps them running."""

from smcp_computer.mcp import sdk_client_import as sdk_client_import  # before anything imports the SDK
