"""In which order MCP servers stand on a desktop and in a catalog (desktop.txt and finder.txt, step 2)."""

from collections.abc import Iterable, Sequence


def server_order(servers: Iterable[str], history: Sequence[str]) -> list[str]:
    """Each of the servers once: those used most recently first, then the others by name.

    Args:
        history: the MCP servers of the tool calls, the oldest call first; it may name servers that are gone.
    """
    left = set(servers)
    recent = [server for server in dict.fromkeys(reversed(history)) if server in left]
    return recent + sorted(left.difference(recent))
