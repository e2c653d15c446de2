"""What is said of an MCP server that failed."""

from typing import Final

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError

from smcp_computer.config.errors import ConfigError
from smcp_computer.mcp.errors import Lost, StartFailed

WENT_AWAY: Final = "went away"


def describe(error: BaseException) -> str:
    """What happened, in one line, for the user of this host."""
    error = first_of(error)
    match error:
        case ConfigError() | StartFailed() | Lost():
            return str(error)
        case TimeoutError():
            return "did not get ready in time"
        case MCPError(code=types.CONNECTION_CLOSED) | anyio.BrokenResourceError() | anyio.ClosedResourceError():
            return WENT_AWAY
        case MCPError(code=types.REQUEST_TIMEOUT):
            return "did not answer in time"
        case _:
            return f"{type(error).__name__}: {error}"[:500] if str(error) else type(error).__name__


def first_of(error: BaseException) -> BaseException:
    """What the groups of the SDK's tasks hold."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
