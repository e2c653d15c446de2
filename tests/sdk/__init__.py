"""The Agent SDK against the real services."""
