"""The errors of MCP servers.

The messages name the server and go to the Agent: they never hold the text of an exception.
"""

from typing import Any, Final

import mcp_types as types

RESOURCE_NOT_FOUND: Final = -32002
"""JSON-RPC code of servers of the 2025 era; those of 2026 say `INVALID_PARAMS`."""

SAID_ALOUD: Final = frozenset({types.INVALID_PARAMS, types.METHOD_NOT_FOUND, RESOURCE_NOT_FOUND})
"""Codes of JSON-RPC errors whose text is about the caller's request; others may hold the text of an exception."""
OUTDATED: Final = "ran nothing, since the tool has changed and is being listed again; call it again"
"""The meaning of `HEADER_MISMATCH`: a server of the 2026 era misses a header, or got a wrong one."""
LONGEST_TEXT: Final = 500
"""Characters of a server's text that are passed on."""


class ServerError(Exception):
    """Base of them all; `what` is the message without the server's name."""

    def __init__(self, server: str, what: str) -> None:
        super().__init__(f"MCP server {server!r} {what}")
        self.server = server
        self.what = what


class ServerNotRunning(ServerError):
    """It has not started, or died and is being started again. Nothing was run."""


class ServerDied(ServerError):
    """It went away before it answered. A tool may have run."""


class CallBrokenOff(ServerError):
    """The Computer ended the call, not the server. A tool may have run."""


class ServerTimedOut(ServerError):
    """It did not answer in time."""


class BadAnswer(ServerError):
    """Its answer is no valid result."""


class AnswerTooLarge(ServerError):
    """Its answer has more bytes than it may have (`limit`), or more values, and was let go; `size` None: not known."""

    def __init__(
        self, server: str, *, limit: int | None = None, size: int | None = None, max_values: int | None = None
    ) -> None:
        most = f"{limit} bytes" if max_values is None else f"{max_values} values"
        super().__init__(server, f"sent an answer of more than {most}")
        self.limit = limit
        self.size = size
        self.max_values = max_values


class RequestRefused(ServerError):
    """It answered with a JSON-RPC error. Only an error about the request keeps the server's text and data."""

    def __init__(self, server: str, code: int, message: str, data: Any) -> None:
        aloud = code in SAID_ALOUD
        self.code = code
        self.said = message[:LONGEST_TEXT] if aloud else f"the MCP server {server!r} failed"
        self.data = data if aloud else None
        what = f"refused the request (MCP error {code})" + (f": {self.said}" if aloud else "")
        super().__init__(server, OUTDATED if code == types.HEADER_MISMATCH else what)


class NotSubscribable(ServerError):
    """It does not announce changes, or not those of this resource."""


class ServerFailed(Exception):
    """A server cannot be started, or went away. The message is for the user of this host."""


class ServerHangs(ServerFailed):
    """It has not answered for too long."""
