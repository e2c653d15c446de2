"""Warns of hosts of `window://` and `dpe://` URIs that several MCP servers use, once for each conflict."""

import logging
from collections.abc import Iterable
from typing import Final

from smcp_computer.resources.routing import template_host
from smcp_proto.hosts import HostConflict, host_conflicts
from smcp_proto.uris.identity import HOSTED, scheme_of

_log = logging.getLogger("smcp_computer.resources")

MOST: Final = 200
"""Conflicts that are warned about: servers may list ever new hosts."""
NONE: Final[frozenset[str]] = frozenset()
Hosts = dict[str, frozenset[str]]
"""By server: its hosts, as URIs that name nothing else."""


class HostConflicts:
    """Kept per server, so that a change of one list costs that list only. Nothing is blocked."""

    def __init__(self) -> None:
        self._of_lists: Hosts = {}
        self._of_templates: Hosts = {}
        self._warned: set[HostConflict] = set()

    def registered(self, server: str, uris: Iterable[str]) -> None:
        """A server lists these now."""
        # hosts stand many times in a long list, and are parsed once
        self._take(self._of_lists, server, (_host_alone(uri) for uri in uris if scheme_of(uri) in HOSTED))

    def registered_templates(self, server: str, templates: Iterable[str]) -> None:
        """A server has these templates now (`uriTemplate`); one whose host is an argument counts for none."""
        self._take(
            self._of_templates,
            server,
            (_host_alone(template) for template in templates if template_host(template) is not None),
        )

    def _take(self, known: Hosts, server: str, hosts: Iterable[str]) -> None:
        found = frozenset(hosts)
        if known.get(server, NONE) == found:
            return
        known[server] = found
        servers = {*self._of_lists, *self._of_templates}
        used = {each: self._of_lists.get(each, NONE) | self._of_templates.get(each, NONE) for each in servers}
        for conflict in host_conflicts(used):
            if conflict not in self._warned and len(self._warned) < MOST:
                self._warned.add(conflict)
                _log.warning(
                    "the MCP servers %s use the same host %r; give each its own: a dpe:// URI is routed by its host",
                    " and ".join(map(repr, conflict.servers)),
                    conflict.host,
                )


def _host_alone(uri: str) -> str:
    return "/".join(uri.split("?", maxsplit=1)[0].split("/", 3)[:3])
