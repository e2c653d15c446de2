"""Warnings that are said once for each cause, and not at every read."""

import logging
from collections import OrderedDict
from typing import Final

MOST: Final = 4096
"""Causes that are remembered; one that was said longest ago is forgotten, and may be said again."""


class Causes:
    """Args:
    log: where they are said.
    """

    def __init__(self, log: logging.Logger, *, most: int = MOST) -> None:
        self._log = log
        self._most = most
        self._said: OrderedDict[tuple[str, str], None] = OrderedDict()

    def warn(self, server: str, what: str) -> None:
        """Say it, unless it was said of this MCP server."""
        cause = (server, what)
        if cause in self._said:
            self._said.move_to_end(cause)
            return
        self._said[cause] = None
        if len(self._said) > self._most:
            self._said.popitem(last=False)
        self._log.warning("MCP server %r: %s", server, what)

    def forget(self, server: str) -> None:
        """A new life of the server: what is still wrong is said again."""
        for cause in [cause for cause in self._said if cause[0] == server]:
            del self._said[cause]
