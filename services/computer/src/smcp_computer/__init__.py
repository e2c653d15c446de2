"""The A2C-SMCP Computer: it runs the MCP servers of a host and answers for them."""
