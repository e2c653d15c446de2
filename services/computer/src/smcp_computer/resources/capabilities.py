"""What this Computer says of its resources (computer.txt, resources chapter, 1)."""

from collections.abc import Callable
from typing import Any

from smcp_computer.resources.index import ResourceIndex


class Capabilities:
    """Those of the MCP servers that are ready, taken together; a server without resources is in none of it.

    Args:
        changed: called when they did.
    """

    def __init__(self, index: ResourceIndex, changed: Callable[[], None]) -> None:
        self._index = index
        self._changed = changed
        self._said = self.now
        index.listen(self._look)

    @property
    def now(self) -> dict[str, Any]:
        """The wire's `Capabilities`, in both of the forms that are legal: flags, and `aggregate` with `byServer`."""
        by_server = {
            name: {"subscribe": features.subscribe, "listChanged": features.list_changed}
            for name in self._index.servers()
            if (features := self._index.features(name)) is not None
        }
        whole = {flag: any(said[flag] for said in by_server.values()) for flag in ("subscribe", "listChanged")}
        return {"resources": {**whole, "aggregate": whole, "byServer": by_server}}

    def _look(self, server: str) -> None:
        now = self.now
        if now != self._said:
            self._said = now
            self._changed()
