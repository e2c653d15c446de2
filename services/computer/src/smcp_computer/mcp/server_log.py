"""The log of one MCP server: what it writes to standard error, rate-limited, and why it failed.

The process's log gets both, as does a file of the server's own that `smcp-computer logs` shows.
"""

import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from http.client import responses
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

import anyio
import httpx2
import mcp_types as types
from mcp.shared.exceptions import MCPError

from smcp_computer.config.lint import ConfigError
from smcp_computer.mcp.errors import ServerFailed
from smcp_computer.redaction import SEARCHED
from smcp_proto.member_names import encode_name
from smcp_proto.printable import printable
from smcp_service.lifecycle import counted
from smcp_service.logging import WRITTEN_BY

WENT_AWAY: Final = "went away"
HANGS: Final = "has stopped answering"


def describe(error: BaseException) -> str:
    """What happened, in one line. Agents may see it: it holds no text of a server or of an exception."""
    error = first_of(error)
    match error:
        case ConfigError() | ServerFailed():
            return str(error)
        case httpx2.HTTPStatusError():
            return answered(error.response.status_code)
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return "cannot be reached"
        case httpx2.TimeoutException() | MCPError(code=types.REQUEST_TIMEOUT):
            return "did not answer in time"
        case httpx2.SSEError():
            return "did not answer with a stream (text/event-stream)"
        case httpx2.TransportError():
            return "broke off its connection"
        case TimeoutError():
            return "did not answer as an MCP server in time"
        case MCPError(code=types.CONNECTION_CLOSED) | anyio.BrokenResourceError() | anyio.ClosedResourceError():
            return WENT_AWAY
        case MCPError(code=code):
            return f"answered with the MCP error {code}"
        case _:
            return f"failed ({type(error).__name__})"


def answered(status: int) -> str:
    """That a server answered with this status of HTTP."""
    return f"answered {status} {responses.get(status, '')}".rstrip()


def first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_log = logging.getLogger("smcp_computer.mcp")
_stderr = logging.getLogger("smcp_computer.mcp.stderr")

LINES_A_MINUTE: Final = 100
"""Further lines of a server are logged at `debug`."""
LAST_LINES: Final = 5
"""Lines that are shown of a process that ended, `LONGEST_LINE` characters each."""
LONGEST_LINE: Final = 300
MAX_LINE: Final = 2000
"""Characters of a line that are shown."""
LONGEST_NAME: Final = 150
"""Characters of a server's name in that of its file: file systems take 255 bytes."""

_NO_TEXT: Final = re.compile(r"[\u2500-\u259f\s]+")
"""What boxes are drawn with."""
FILE_BYTES: Final = 1024 * 1024
"""A file of a server's log is replaced when it has so many; the one before is kept."""


def log_file(directory: Path, server: str) -> Path:
    """Where a server's log is; what is older has the same name with `.1` at its end."""
    name = encode_name(server)
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}={blake2b(server.encode(), digest_size=6).hexdigest()}"
    return directory / f"{name}.log"


class _File(RotatingFileHandler):
    """One server's log. If the disk is full, lines are lost, and one warning says so."""

    def __init__(self, path: Path) -> None:
        with suppress(OSError):  # `emit` fails then, and warns
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=1, encoding="utf-8", errors="replace", delay=True)
        formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)
        self._has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- the standard library's name
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s: cannot be written: %s", self.baseFilename, sys.exc_info()[1])


@dataclass(eq=False)
class StderrLog:
    """What one server writes to its standard error, over all its lives: to the log, and to a file of its own.

    Attributes:
        pid: its process, while it runs.
        status: the exit status of a process that ended by itself.
    """

    server: str
    directory: Path | None = None
    """Of the file; None: there is none."""
    clean: Callable[[str], str] = lambda line: line
    """Takes secrets out of a line."""

    def __post_init__(self) -> None:
        self._file = None if self.directory is None else _File(log_file(self.directory, self.server))
        self._minute_began = 0.0
        self._lines = 0
        """In this minute."""
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._is_shown = True
        """Whether the log shows these last lines."""
        self._warned: set[str] = set()
        self._last_failure: tuple[str, int | None] | None = None
        """The failure that was logged last, with the exit status."""
        self._is_quiet = False
        """A start failed: until it is ready its lines are logged at `debug`, and quoted when it ends."""
        self.pid: int | None = None
        self.status: int | None = None

    def process_started(self) -> None:
        self._last.clear()
        self._warned.clear()
        self.status = None

    def wrote(self, line: str) -> None:
        line = printable(self.clean(line)[:MAX_LINE]).rstrip()
        level = self._level(logging.INFO)
        if words := _NO_TEXT.sub(" ", line).strip():
            self._last.append(words[:LONGEST_LINE])
            self._is_shown = _stderr.isEnabledFor(level)
        _stderr.log(level, "%s", line, extra={"mcp_server": self.server, WRITTEN_BY: self.server})
        self.note(line)

    def note(self, text: str) -> None:
        """Write a line to the file alone."""
        if self._file is not None:
            self._file.handle(logging.LogRecord(self.server, logging.INFO, "", 0, self.clean(text), None, None))

    def warning(self, text: str, *values: object) -> None:
        """Something is odd about what the server sends; `text` continues "MCP server 'x'". The Computer's log gets each
        `text` once per start of the server; the server's file gets all, except while its starts fail."""
        # cleaned before `text` cuts a value: a part of a secret would not be found any more
        cleaned = [self.clean(value[:SEARCHED]) if isinstance(value, str) else value for value in values]
        level = self._level(logging.WARNING)
        _stderr.log(logging.DEBUG if text in self._warned else level, f"MCP server %r {text}", self.server, *cleaned)
        self._warned.add(text)
        if level == logging.WARNING:
            self.note(f"it {text}" % tuple(cleaned))

    def ready(self, tools: int) -> None:
        self._last_failure, self._is_quiet = None, False
        _log.info("MCP server %r is ready with %s", self.server, counted(tools, "tool"))
        self.note(f"it is ready with {counted(tools, 'tool')}")

    def failed(self, error: BaseException, outlook: str, *, was_ready: bool) -> str:
        """Log why it ended, each cause once until it is ready again. `outlook`: what is next. Returns the reason."""
        reason, first = describe(error), first_of(error)
        if self.status is None:
            is_described = isinstance(first, ConfigError | ServerFailed | TimeoutError | httpx2.HTTPError)
            is_described &= not isinstance(first, httpx2.ConnectError)  # the name, the port or the certificate
            said = "" if is_described or reason == WENT_AWAY else str(first)[:SEARCHED]
            notes = " ".join(self.clean(said).split())[:LONGEST_LINE]
        else:
            notes = f"its process ended with status {self.status}"
            if reason == WENT_AWAY and not was_ready:
                hint = "" if self.status else ": it does not serve MCP over stdio"
                reason, notes = f"{notes} before it answered{hint}", ""
            if not (self._last and self._is_shown):
                notes = "; ".join(filter(None, [notes, f"it said last: {' | '.join(self._last) or 'nothing'}"]))
        message = f"{reason} ({notes}); {outlook}" if notes else f"{reason}; {outlook}"
        is_known = self._last_failure == (reason, self.status)
        self._last_failure, self._is_quiet = (reason, self.status), not was_ready
        _log.log(logging.DEBUG if is_known else logging.WARNING, "MCP server %r: %s", self.server, message)
        self.note(self.clean(message))
        return reason

    def close(self) -> None:
        """No more is written to the file."""
        if self._file is not None:
            with suppress(OSError):  # the disk is full: the last lines are lost
                self._file.close()

    def _level(self, level: int) -> int:
        if self._is_quiet:
            return logging.DEBUG
        now = time.monotonic()
        if now >= self._minute_began + 60:
            self._minute_began, self._lines = now, 0
        self._lines += 1
        if self._lines == LINES_A_MINUTE + 1:
            _stderr.warning("MCP server %r writes more lines than are shown; others are logged at debug", self.server)
        return level if self._lines <= LINES_A_MINUTE else logging.DEBUG
