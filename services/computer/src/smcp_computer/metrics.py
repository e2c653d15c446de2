"""The metrics of a Computer."""

from collections.abc import Callable, Mapping

from smcp_bus.owner import Owner
from smcp_bus.ownership import Seat
from smcp_computer.finder import MetadataCache
from smcp_computer.mcp.events import ServerStatus, State
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.pins import Pins
from smcp_computer.resources.index import ResourceIndex
from smcp_service.metrics import Metrics


def calls_timed(metrics: Metrics) -> Callable[..., None]:
    return metrics.durations(
        "smcp_computer_call_duration", "Requests for tools, until they are answered", "outcome"
    ).add


def measure_resources(metrics: Metrics, index: ResourceIndex, cache: MetadataCache) -> None:
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


def measure_servers(metrics: Metrics, fleet: Fleet) -> None:
    def each(value: Callable[[ServerStatus], float | None]) -> Callable[[], dict[str, float]]:
        return lambda: {each.name: found for each in fleet.statuses() if (found := value(each)) is not None}

    def states() -> dict[tuple[str, ...], float]:
        return {(name, supervisor.state.value): 1 for name, supervisor in fleet.supervisors.items()}

    metrics.gauge(
        "smcp_computer_mcp_server_state", "1 for the state of the MCP server", states, label=("server", "state")
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


def measure_calls(
    metrics: Metrics,
    seat: Seat,
    fleet: Fleet,
    ended: Mapping[tuple[str, ...], float],
    answers: Mapping[str, float],
    pins: Pins,
) -> None:
    """`ended`: calls by MCP server and outcome; `answers`: those to approval requests."""

    def configured() -> dict[tuple[str, ...], float]:
        return {(seat.office, seat.computer): 1}

    def of_servers() -> dict[tuple[str, ...], float]:
        return {key: count for key, count in ended.items() if key[0] in fleet.config.servers}

    metrics.gauge(
        "smcp_computer_info",
        "1, with the office and the name that this Computer is configured with",
        configured,
        label=("office", "computer"),
    )
    metrics.counter(
        "smcp_computer_mcp_server_calls",
        "Calls that the MCP server was to run, and how they ended",
        of_servers,
        label=("server", "outcome"),
    )
    metrics.counter("smcp_computer_approvals", "Questions whether a tool may run", lambda: answers, label="answer")
    metrics.gauge(
        "smcp_computer_changed_tools", "Tools that differ from their pins", lambda: pins.counts, label="server"
    )


def measure(metrics: Metrics, fleet: Fleet, owner: Owner, joined: Callable[[], bool]) -> None:
    def servers() -> dict[str, int]:
        states = {str(state.value): 0 for state in State}
        for supervisor in fleet.supervisors.values():
            states[str(supervisor.state.value)] += 1
        states[State.DISABLED.value] = len(fleet.config.servers) - len(fleet.supervisors)
        return states

    metrics.gauge("smcp_computer_mcp_servers", "Configured MCP servers", servers, label="state")
    measure_servers(metrics, fleet)
    metrics.gauge("smcp_computer_calls_in_flight", "Calls of tools that run", lambda: owner.running)
    metrics.gauge("smcp_computer_in_office", "1 while it is a member of its office, else 0", joined)
