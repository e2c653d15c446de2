"""Which MCP servers' tools were called, in the order of the last call of each: desktop and finder are sorted by it."""


class History:
    """Bounded by the servers that there are: only the last call of each counts for the order."""

    def __init__(self) -> None:
        self._servers: dict[str, None] = {}

    def called(self, server: str) -> None:
        """A tool of that server is called now."""
        self._servers.pop(server, None)
        self._servers[server] = None

    @property
    def servers(self) -> tuple[str, ...]:
        """Oldest first, each once."""
        return tuple(self._servers)
