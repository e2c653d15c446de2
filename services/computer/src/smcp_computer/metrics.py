"""The metrics of a Computer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from smcp_computer.mcp.events import ServerStatus, State
from smcp_service.metrics import Metrics

if TYPE_CHECKING:
    from smcp_computer.computer import Computer


def calls_timed(metrics: Metrics) -> Callable[..., None]:
    return metrics.durations(
        "smcp_computer_call_duration", "Requests for tools, until they are answered", "outcome"
    ).add


def measure(computer: "Computer") -> None:
    metrics, fleet, calls = computer.metrics, computer.fleet, computer.calls
    index, cache = computer.resources.index, computer.resources.cache

    def servers() -> dict[str, int]:
        states = {state.value: 0 for state in State}
        for supervisor in fleet.supervisors.values():
            states[supervisor.state.value] += 1
        states[State.DISABLED.value] = len(fleet.config.servers) - len(fleet.supervisors)
        return states

    def ended_calls() -> dict[tuple[str, ...], float]:
        return {key: count for key, count in calls.by_server.items() if key[0] in fleet.config.servers}

    def server_states() -> dict[tuple[str, ...], float]:
        return {(name, supervisor.state.value): 1 for name, supervisor in fleet.supervisors.items()}

    def configured() -> dict[tuple[str, ...], float]:
        return {(computer.seat.office, computer.seat.computer): 1}

    def each(value: Callable[[ServerStatus], float | None]) -> Callable[[], dict[str, float]]:
        return lambda: {each.name: found for each in fleet.statuses() if (found := value(each)) is not None}

    metrics.gauge("smcp_computer_mcp_servers", "Configured MCP servers", servers, label="state")
    metrics.gauge(
        "smcp_computer_mcp_server_state", "1 for the state of the MCP server", server_states, label=("server", "state")
    )
    metrics.counter(
        "smcp_computer_mcp_server_restarts",
        "Times that the MCP server became ready again",
        each(lambda status: status.restarts),
        label="server",
    )
    metrics.gauge(
        "smcp_computer_mcp_server_cpu",
        "CPU time of the MCP server's processes that run now",
        each(lambda status: status.cpu_s),
        unit="seconds",
        label="server",
    )
    metrics.gauge(
        "smcp_computer_mcp_server_memory",
        "Resident memory of the MCP server's processes",
        each(lambda status: status.memory_bytes),
        unit="bytes",
        label="server",
    )
    metrics.counter(
        "smcp_computer_mcp_server_calls",
        "Calls that the MCP server was to run, and how they ended",
        ended_calls,
        label=("server", "outcome"),
    )
    metrics.gauge("smcp_computer_calls_in_flight", "Calls of tools that run", lambda: computer.owner.running)
    metrics.counter(
        "smcp_computer_approvals",
        "Questions whether a tool may run",
        lambda: computer.confirmation.answers,
        label="answer",
    )
    metrics.gauge(
        "smcp_computer_changed_tools", "Tools that differ from their pins", lambda: computer.pins.counts, label="server"
    )
    metrics.gauge("smcp_computer_in_office", "1 while it is a member of its office, else 0", computer.may_tell)
    metrics.gauge(
        "smcp_computer_info",
        "1, with the office and the name that this Computer is configured with",
        configured,
        label=("office", "computer"),
    )
    metrics.counter(
        "smcp_computer_servers_without_resources",
        "MCP servers that a request over all of them skipped, since they have no resources",
        lambda: index.skipped,
        label="operation",
    )
    metrics.counter(
        "smcp_computer_servers_left_out",
        "MCP servers that a request over all of them left out: not running, failed or silent",
        lambda: index.left_out,
        label="operation",
    )
    metrics.counter(
        "smcp_computer_documents_not_kept", "Documents for whose metadata there was no room", lambda: cache.not_kept
    )
