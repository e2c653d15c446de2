"""Logs the standard error of an MCP server, rate-limited, and describes its failures."""

import logging
import re
import time
from collections import deque
from typing import Final

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError

from smcp_computer.config.lint import ConfigError
from smcp_computer.mcp.errors import ServerFailed

WENT_AWAY: Final = "went away"


def describe(error: BaseException) -> str:
    """What happened, in one line, for the user of this host."""
    error = first_of(error)
    match error:
        case ConfigError() | ServerFailed():
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
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_stderr = logging.getLogger("smcp_computer.mcp.stderr")

LINES_A_MINUTE: Final = 100
"""Further lines of a server are logged at `debug`."""
LAST_LINES: Final = 5
"""Lines that are shown of a process that ended, `LONGEST_LINE` characters each."""
LONGEST_LINE: Final = 300
MAX_LINE: Final = 2000
"""Characters of a line that are shown."""

_SEQUENCE: Final = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""A sequence for a terminal: CSI or OSC of ECMA-48."""
_NO_TEXT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2500-\u259f\s]+")
"""Control characters, and what boxes are drawn with."""


class StderrLog:
    """What one server writes to its standard error, over all its lives.

    Attributes:
        pid: its process, while it runs.
        end: how its process ended by itself; empty while it runs.
        said: what it said last then, in one line.
        status: its exit status then.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self._minute_began = 0.0
        self._lines = 0
        """In this minute."""
        self._quiet_until = 0.0
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self.pid: int | None = None
        self.end = ""
        self.said = ""
        self.status: int | None = None

    def born(self, *, quiet_s: float = 0.0) -> None:
        """A new process. For `quiet_s` seconds its lines are logged at `debug`."""
        self._last.clear()
        self.end, self.said, self.status = "", "", None
        self._quiet_until = time.monotonic() + quiet_s

    def wrote(self, line: str) -> None:
        line = line[:MAX_LINE]
        if words := _NO_TEXT.sub(" ", _SEQUENCE.sub("", line)).strip():
            self._last.append(words[:LONGEST_LINE])
        _stderr.log(self._level(logging.INFO), "%s", line, extra={"mcp_server": self.server})

    def warning(self, text: str, *values: object) -> None:
        """Something is odd about what the server sends; `text` continues "MCP server 'x'"."""
        _stderr.log(self._level(logging.WARNING), f"MCP server %r {text}", self.server, *values)

    def died(self, status: int | None) -> None:
        self.status = status
        self.end = f"its process ended with status {status}"
        self.said = f"it said last: {' | '.join(self._last) or 'nothing'}"

    def _level(self, level: int) -> int:
        now = time.monotonic()
        if now < self._quiet_until:
            return logging.DEBUG
        if now >= self._minute_began + 60:
            self._minute_began, self._lines = now, 0
        self._lines += 1
        if self._lines == LINES_A_MINUTE + 1:
            _stderr.warning("MCP server %r writes more lines than are shown; others are logged at debug", self.server)
        return level if self._lines <= LINES_A_MINUTE else logging.DEBUG
