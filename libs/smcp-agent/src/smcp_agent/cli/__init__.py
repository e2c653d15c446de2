"""The command line `smcp-agent`."""
