"""The metrics of a Computer."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from smcp_computer.mcp.events import ServerStatus, State

if TYPE_CHECKING:
    from smcp_computer.computer import Computer


def measure(computer: "Computer") -> None:
    gauge, counter = computer.metrics.gauge, computer.metrics.counter
    text = "Requests for tools, until they are answered"
    computer.calls.ended = computer.metrics.durations("smcp_computer_call_duration", text, "outcome").add
    fleet, calls, index = computer.fleet, computer.calls, computer.resources.index

    def servers() -> dict[str, int]:
        found = Counter(each.state.value for each in fleet.supervisors.values())
        found[State.DISABLED.value] = len(fleet.config.servers) - len(fleet.supervisors)
        return {state.value: found[state.value] for state in State}

    def states() -> dict[tuple[str, ...], float]:
        return {(name, supervisor.state.value): 1 for name, supervisor in fleet.supervisors.items()}

    def ended_calls() -> dict[tuple[str, ...], float]:
        return {key: count for key, count in calls.by_server.items() if key[0] in fleet.config.servers}

    def configured() -> dict[tuple[str, ...], float]:
        return {(computer.seat.office, computer.seat.computer): 1}

    def each(value: Callable[[ServerStatus], float | None]) -> Callable[[], dict[str, float]]:
        return lambda: {each.name: found for each in fleet.statuses() if (found := value(each)) is not None}

    restarts, cpu = each(lambda status: status.restarts), each(lambda status: status.cpu_s)
    memory = each(lambda status: status.memory_bytes)
    gauge("smcp_computer_mcp_servers", "Configured MCP servers", servers, label="state")
    gauge("smcp_computer_mcp_server_state", "1 for the state of the MCP server", states, label=("server", "state"))
    text = "Times that the MCP server became ready again"
    counter("smcp_computer_mcp_server_restarts", text, restarts, label="server")
    text = "CPU time of the MCP server's processes that run now"
    gauge("smcp_computer_mcp_server_cpu", text, cpu, unit="seconds", label="server")
    text = "Resident memory of the MCP server's processes"
    gauge("smcp_computer_mcp_server_memory", text, memory, unit="bytes", label="server")
    text = "Calls that the MCP server was to run, and how they ended"
    counter("smcp_computer_mcp_server_calls", text, ended_calls, label=("server", "outcome"))
    gauge("smcp_computer_calls_in_flight", "Calls of tools that run", lambda: computer.owner.running)
    text = "Questions whether a tool may run"
    counter("smcp_computer_approvals", text, lambda: computer.confirmation.answers, label="answer")
    text = "Tools that differ from their pins"
    gauge("smcp_computer_changed_tools", text, lambda: computer.pins.counts, label="server")
    gauge("smcp_computer_in_office", "1 while it is a member of its office, else 0", computer.may_tell)
    text = "1, with the office and the name that this Computer is configured with"
    gauge("smcp_computer_info", text, configured, label=("office", "computer"))
    text = "MCP servers that a request over all of them skipped, since they have no resources"
    counter("smcp_computer_servers_without_resources", text, lambda: index.skipped, label="operation")
    text = "MCP servers that a request over all of them left out: not running, failed or silent"
    counter("smcp_computer_servers_left_out", text, lambda: index.left_out, label="operation")
    text = "Documents for whose metadata there was no room"
    counter("smcp_computer_documents_not_kept", text, lambda: computer.resources.cache.not_kept)
