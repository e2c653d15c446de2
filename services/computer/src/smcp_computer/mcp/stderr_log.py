"""What an MCP server writes beside its messages, as this host's log gets it: bounded, whatever the server does.

A line is a line of the log, up to a rate; what is above it goes to the level `debug` and is counted. A server that dies
again and again says the same each time, so its next lives begin at `debug`, too: what it said last stands in the line
that tells of its end.
"""

import logging
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("smcp_computer.mcp.stderr")

BURST: Final = 50
"""Lines that may come at once."""
PER_SECOND: Final = 1.0
"""Lines per second after that."""
LAST_WORDS: Final = 5
"""Lines that are shown of a process that ended."""
LONGEST_WORDS: Final = 300
"""Characters of each of them."""
MAX_LINE: Final = 2000
"""Characters of a line that are shown."""

_SEQUENCE: Final = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""A sequence for a terminal: CSI or OSC of ECMA-48."""
_NO_WORDS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2500-\u259f\s]+")
"""Control characters, and what boxes are drawn with."""


class StderrLog:
    """Of one server, over all its lives.

    Attributes:
        end: how its process ended by itself; empty while it runs.
        said: what it said last then, in one line.
        status: its exit status then.
    """

    def __init__(self, server: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._tokens = float(BURST)
        self._filled_at = clock()
        self._hidden = 0
        self._quiet_until = 0.0
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        self.end = ""
        self.said = ""
        self.status: int | None = None

    def born(self, *, quiet_s: float = 0.0) -> None:
        """A new process. For `quiet_s` seconds it is shown at the level `debug` alone."""
        self._words.clear()
        self.end, self.said, self.status = "", "", None
        self._quiet_until = self._clock() + quiet_s

    def wrote(self, line: str) -> None:
        """A line of its standard error."""
        line = line[:MAX_LINE]
        if words := _NO_WORDS.sub(" ", _SEQUENCE.sub("", line)).strip():
            self._words.append(words[:LONGEST_WORDS])
        _log.log(self._level(logging.INFO), "%s", line, extra={"mcp_server": self._server})

    def no_message(self, line: str) -> None:
        """A line of its standard output that is no message of MCP."""
        level = self._level(logging.WARNING)
        _log.log(level, "MCP server %r wrote a line that is no message: %.200r", self._server, line)

    def too_long(self, size: int, limit: int) -> None:
        """A message that was let go."""
        level = self._level(logging.WARNING)
        _log.log(
            level, "MCP server %r sent a message of %d bytes, more than %d: it is not read", self._server, size, limit
        )

    def mended(self) -> None:
        """A message with halves of surrogate pairs."""
        level = self._level(logging.WARNING)
        _log.log(level, "MCP server %r sent halves of surrogate pairs; they are replaced by U+FFFD", self._server)

    def died(self, status: int | None) -> None:
        """Its process ended by itself."""
        self.status = status
        words = " | ".join(self._words) or "nothing"
        self.end = f"its process ended with status {status}"
        self.said = f"it said last: {words}"

    def _level(self, level: int) -> int:
        now = self._clock()
        if now < self._quiet_until:
            return logging.DEBUG
        self._tokens = min(BURST, self._tokens + PER_SECOND * (now - self._filled_at))
        self._filled_at = now
        if self._tokens < 1:
            if not self._hidden:
                _log.warning(
                    "MCP server %r writes more lines than are shown; the others are logged at debug", self._server
                )
            self._hidden += 1
            return logging.DEBUG
        self._tokens -= 1
        if self._hidden and self._tokens >= BURST - 1:  # it has calmed down
            _log.warning("MCP server %r wrote %d lines that were not shown", self._server, self._hidden)
            self._hidden = 0
        return level
