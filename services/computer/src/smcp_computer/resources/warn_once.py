"""Warnings about MCP servers that are logged once for each cause, and not at every read."""

import logging
import re
from typing import Final

from smcp_computer.mcp.events import ServerEvent, ServerEvents, ServerReady

MOST: Final = 200
"""Warnings about one MCP server, in one life of it: it may cause ever new ones."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class WarnOnce:
    """When a server was started again, what is still wrong is logged again."""

    def __init__(self, log: logging.Logger, events: ServerEvents, *, most: int = MOST) -> None:
        self._log = log
        self._most = most
        self._logged: dict[str, set[str]] = {}
        events.listen(self._on_event)

    def warn(self, server: str, *causes: str) -> None:
        """Log what was not logged of this MCP server already; without control characters that a server sent."""
        logged = self._logged.setdefault(server, set())
        for what in causes:
            if what in logged or len(logged) > self._most:
                continue
            logged.add(what)
            if len(logged) > self._most:
                self._log.warning("MCP server %r: more is wrong with its resources than is said here", server)
            else:
                self._log.warning("MCP server %r: %s", server, _CONTROL.sub(" ", what))

    def _on_event(self, event: ServerEvent) -> None:
        if isinstance(event, ServerReady):
            self._logged.pop(event.server, None)
