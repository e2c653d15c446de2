"""Warnings that are said once for each cause, and not at every read."""

import logging
import re
from typing import Final

MOST: Final = 200
"""WarnOnce that are said of one MCP server, in one life of it."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class WarnOnce:
    """Args:
    log: where they are said.
    """

    def __init__(self, log: logging.Logger, *, most: int = MOST) -> None:
        self._log = log
        self._most = most
        self._said: dict[str, set[str]] = {}

    def warn(self, server: str, what: str) -> None:
        """Say it, unless it was said of this MCP server already; without control characters that a server sent."""
        said = self._said.setdefault(server, set())
        if what in said or len(said) > self._most:
            return
        said.add(what)
        if len(said) > self._most:
            self._log.warning("MCP server %r: more is wrong with its resources than is said here", server)
        else:
            self._log.warning("MCP server %r: %s", server, _CONTROL.sub(" ", what))

    def forget(self, server: str) -> None:
        """A new life of the server: what is still wrong is said again."""
        self._said.pop(server, None)
