"""The metrics of MCP servers that what goes over all servers has skipped."""

from collections.abc import Iterable

from opentelemetry.metrics import Meter


class SkippedServers:
    """`smcp.computer.servers_without_resources`: one for each such server and each operation that skipped it."""

    def __init__(self, meter: Meter) -> None:
        self._counter = meter.create_counter(
            "smcp.computer.servers_without_resources",
            unit="{server}",
            description="MCP servers that an operation over all servers skipped, since they have no resources",
        )

        self._left_out = meter.create_counter(
            "smcp.computer.servers_left_out",
            unit="{server}",
            description="MCP servers whose items a list over all servers lacks: not running, failed or silent",
        )

    def count_left_out(self, operation: str, servers: Iterable[str]) -> None:
        """`smcp.computer.servers_left_out`: of those that may have resources. Arguments as of `count`."""
        for server in servers:
            self._left_out.add(1, {"smcp.operation": operation, "smcp.mcp_server": server})

    def count(self, operation: str, servers: Iterable[str]) -> None:
        """Args:
        operation: the verb of the event, as `get_desktop`.
        """
        for server in servers:
            self._counter.add(1, {"smcp.operation": operation, "smcp.mcp_server": server})
