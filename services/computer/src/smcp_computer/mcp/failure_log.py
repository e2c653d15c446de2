"""The lines of the log that the failures of an MCP server leave: each end, and each new reason not to start."""

import logging
from collections.abc import Sequence

from smcp_computer.mcp.environment import SETTING
from smcp_computer.mcp.failures import WENT_AWAY, describe
from smcp_computer.mcp.stderr_log import StderrLog
from smcp_proto.schemas.config import MCPServerConfig, MCPServerStdioConfig

_log = logging.getLogger("smcp_computer.mcp")


class FailureLog:
    """Args:
    stderr: what the server wrote to its standard error.
    withheld: variables that a program may have needed, and that it did not get.
    longest_s: the longest pause between two tries.
    """

    def __init__(
        self, config: MCPServerConfig, stderr: StderrLog, *, withheld: Sequence[str], longest_s: float
    ) -> None:
        self._config = config
        self._stderr = stderr
        self._withheld = withheld
        self._longest_s = longest_s
        self._said: tuple[str, int | None] | None = None
        """Why it did not start, as it was logged last, with the exit status."""

    def started(self) -> None:
        """It is ready: what fails from now on is said anew."""
        self._said = None

    def failed(self, error: Exception, pause: float, *, was_ready: bool) -> str:
        """It ended, or did not start, and is tried again in `pause` seconds. Returns the reason in one line."""
        reason = describe(error)
        if ended := self._stderr.end:
            if not was_ready and reason == WENT_AWAY:
                reason = f"{ended} before it answered"
                told = f"{reason}; {self._stderr.said}"
            else:
                told = f"{reason} ({ended}; {self._stderr.said})"
        else:
            told = reason
        name = self._config.name
        if was_ready:
            _log.warning("MCP server %r: %s; it is started again in %.1f s", name, told, pause)
            return reason
        if (reason, self._stderr.status) != self._said:
            if missing := self._not_given():
                told += f"; it was not given {', '.join(missing)}, see {SETTING}"
            _log.warning(
                "MCP server %r: %s; the next try is in %.1f s, the others ever later, up to every %g s",
                *(name, told, pause, self._longest_s),
            )
        else:
            _log.debug("MCP server %r: %s; the next try is in %.1f s", name, told, pause)
        self._said = (reason, self._stderr.status)
        return reason

    def given_up(self, error: Exception) -> str:
        """It can never work in this environment. Returns the reason."""
        reason = describe(error)
        _log.warning("MCP %s (it is not started, nor tried again)", reason)
        return reason

    def _not_given(self) -> list[str]:
        """Variables that the program of a server may have needed, as it ended by itself."""
        if not isinstance(self._config, MCPServerStdioConfig) or not self._stderr.end:
            return []
        return [name for name in self._withheld if name not in (self._config.server_parameters.env or {})]
