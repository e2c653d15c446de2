"""Warns of hosts of `window://` and `dpe://` URIs that several MCP servers use, once for each conflict."""

import logging
from collections.abc import Iterable
from typing import Final

from smcp_proto.uris import HOSTED, HostConflict, host_conflicts, scheme_of

_log = logging.getLogger("smcp_computer.resources")

MOST: Final = 200
"""Conflicts that are warned about: servers may list ever new hosts."""
NONE: Final[frozenset[str]] = frozenset()


class HostConflicts:
    """Kept per server, so that a change of one list costs that list only. Nothing is blocked."""

    def __init__(self) -> None:
        self._hosts: dict[str, frozenset[str]] = {}
        """By server: its hosts, as URIs that name nothing else."""
        self._warned: set[HostConflict] = set()

    def registered(self, server: str, uris: Iterable[str]) -> None:
        """A server lists these now."""
        # a host stands many times in a long list, and is parsed once
        found = frozenset(_host_alone(uri) for uri in uris if scheme_of(uri) in HOSTED)
        if self._hosts.get(server, NONE) == found:
            return
        self._hosts[server] = found
        for conflict in host_conflicts(self._hosts):
            if conflict not in self._warned and len(self._warned) < MOST:
                self._warned.add(conflict)
                _log.warning(
                    "the MCP servers %s use the same host %r; give each its own: a dpe:// URI is routed by its host",
                    " and ".join(map(repr, conflict.servers)),
                    conflict.host,
                )


def _host_alone(uri: str) -> str:
    return "/".join(uri.split("?", maxsplit=1)[0].split("/", 3)[:3])
