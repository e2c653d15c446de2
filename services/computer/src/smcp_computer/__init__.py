"""The A2C-SMCP Computer: it runs the MCP servers of a host and answers for them."""

from importlib.metadata import version

__version__ = version("smcp-computer")
