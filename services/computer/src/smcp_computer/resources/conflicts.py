"""Warns of hosts of `window://` and `dpe://` URIs that several MCP servers use, once for each conflict."""

import logging
from collections.abc import Iterable
from typing import Final

from smcp_computer.resources.routing import HOSTED, scheme_of
from smcp_proto.hosts import HostConflict, host_conflicts

_log = logging.getLogger("smcp_computer.resources")

MOST: Final = 200
"""Conflicts that are warned about: servers may list ever new hosts."""


class HostConflicts:
    """Kept per server, so that a change of one list costs that list only."""

    def __init__(self) -> None:
        self._used: dict[str, list[str]] = {}
        """By server: its hosts, as URIs that name nothing else."""
        self._warned: set[HostConflict] = set()

    def registered(self, server: str, uris: Iterable[str]) -> None:
        """A server lists these now. Nothing is blocked."""
        # hosts stand many times in a long list, and are parsed once
        hosts = {"/".join(uri.split("?")[0].split("/", 3)[:3]) for uri in uris if scheme_of(uri) in HOSTED}
        self._used[server] = sorted(hosts)
        for conflict in host_conflicts(self._used):
            if conflict not in self._warned and len(self._warned) < MOST:
                self._warned.add(conflict)
                _log.warning(
                    "the MCP servers %s use the same host %r; give each its own: a dpe:// URI is routed by its host",
                    " and ".join(map(repr, conflict.servers)),
                    conflict.host,
                )
