"""The line of the log that each call of a tool leaves: what was called, how long it took, how it ended.

Never what it was called with, nor what it gave. The call's `req_id`, `trace_id` and `office` stand on every line.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import Final

_log = logging.getLogger("smcp_computer.tool_call")

REPEATED: Final = "repeated"
"""Nothing was run for this request: it joined a call that runs, or got what is kept of one that ended."""
NOT_CONFIRMED: Final = "not_confirmed"


@dataclass(slots=True)
class CallRecord:
    """One request for a tool, as far as it has come."""

    tool: str
    agent: str
    server: str = ""
    """The MCP server that it went to."""
    outcome: str = REPEATED
    """`ok`, `tool_error`, `timeout`, `cancelled`, `not_confirmed`, `refused`, `failed`, `aborted`, `repeated`, or the
    code of an error of the protocol."""
    why: str = ""
    """For an outcome that does not say enough."""
    asking: bool = False
    """The user of this Computer is asked whether it may run."""
    began: float = field(default_factory=time.perf_counter)

    def ended(self, outcome: str, why: str = "") -> None:
        """How it ended; the last word counts."""
        self.outcome, self.why = outcome, why

    def broken_off(self, why: str) -> None:
        """Something else than its own answer ended it."""
        self.ended(NOT_CONFIRMED if why == "timeout" and self.asking else why)

    @property
    def seconds(self) -> float:
        """How long it took until now."""
        return time.perf_counter() - self.began

    def log(self) -> None:
        """Write the line."""
        if not _log.isEnabledFor(logging.INFO):
            return
        fields: dict[str, object] = {"tool": self.tool, "agent": self.agent, "outcome": self.outcome}
        fields["ms"] = round(1000 * self.seconds, 1)
        if self.server:
            fields["mcp_server"] = self.server
        if self.why:
            fields["why"] = self.why
        _log.info("tool call", extra=fields)
