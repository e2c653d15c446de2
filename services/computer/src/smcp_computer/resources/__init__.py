"""Resources of MCP servers: their lists, the routing of URIs to servers, and subscriptions to changes."""
