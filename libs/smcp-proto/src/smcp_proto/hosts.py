"""Hosts of `window://` and `dpe://` URIs that several MCP servers use (desktop.txt, 校验规则).

Both schemes share one namespace: a `dpe://` URI is routed to its MCP server by its host. A conflict blocks nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from smcp_proto.uris import parse_dpe_uri, parse_window_uri


@dataclass(frozen=True, slots=True)
class HostConflict:
    """One host, several MCP servers."""

    host: str
    servers: tuple[str, ...]
    """Two or more, by name."""


def host_conflicts(listed: Mapping[str, Iterable[str]]) -> tuple[HostConflict, ...]:
    """The hosts that more than one MCP server uses, by host.

    Args:
        listed: the URIs of the resources of each MCP server; those of other schemes and invalid ones do not count.
    """
    servers: dict[str, set[str]] = {}
    for server, uris in listed.items():
        for uri in uris:
            host = host_of(uri)
            if host is not None:
                servers.setdefault(host, set()).add(server)
    return tuple(HostConflict(host, tuple(sorted(names))) for host, names in sorted(servers.items()) if len(names) > 1)


def host_of(uri: str) -> str | None:
    """The host of a `window://` or `dpe://` URI; None for others, and for invalid ones."""
    scheme = uri.partition(":")[0].lower()
    try:
        if scheme == "window":
            return parse_window_uri(uri).uri.host
        if scheme == "dpe":
            return parse_dpe_uri(uri).host
    except ValueError:
        return None
    return None
