"""Says of which MCP servers there are more documents than can be kept: in the log, and as a metric."""

import logging
from typing import Final

from opentelemetry.metrics import Meter

_log = logging.getLogger("smcp_computer.finder")

METRIC: Final = "smcp.computer.documents_not_kept"


class Overflow:
    """The metric `smcp.computer.documents_not_kept`: such documents now, by MCP server."""

    def __init__(self, meter: Meter) -> None:
        self._gauge = meter.create_gauge(
            METRIC,
            unit="{document}",
            description="documents that are searched and ordered as resources/list describes them, for want of room",
        )
        self._known: dict[str, int] = {}
        self._said: dict[str, int] = {}

    def count(self, server: str, documents: int) -> None:
        """So many there are of a server now. That is said when it begins, and when it has doubled since."""
        if documents != self._known.get(server, 0):
            self._known[server] = documents
            self._gauge.set(documents, {"smcp.mcp_server": server})
        if documents > 2 * self._said.get(server, 0):
            self._said[server] = documents
            _log.warning(
                "MCP server %r: the metadata of %d of its documents are not kept: they are searched, ordered and shown "
                "as resources/list describes them; see SMCP_FINDER_INDEX_BYTES",
                server,
                documents,
            )

    def forget(self, server: str) -> None:
        """A new life of the server, or its end: what is wrong with it is said again."""
        self._said.pop(server, None)
