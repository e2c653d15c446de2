"""Metrics of the connection to NATS, the lease, an `Owner`, and the audit trail."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from smcp_bus.audit import Trail
from smcp_bus.bus import Connection
from smcp_bus.nats.bus import NatsBus
from smcp_bus.owner import Owner
from smcp_bus.registry_client import LeaseKeeper


class Instruments(Protocol):
    """As `smcp_service.metrics.Metrics`."""

    def gauge(self, name: str, description: str, read: Callable[[], float], *, unit: str = "") -> None: ...
    def counter(
        self,
        name: str,
        description: str,
        read: Callable[[], float | Mapping[str, float]],
        *,
        unit: str = "",
        label: str = "",
    ) -> None: ...


def measure_owner(metrics: Instruments, owner: Owner) -> None:
    metrics.counter(
        "smcp_calls_repeated",
        "Calls that were asked for again and not run again, by what there was of them",
        lambda: owner.repeats,
        label="found",
    )
    metrics.counter(
        "smcp_tool_progress_notes",
        "Notes of the progress of tool calls, by what became of them",
        lambda: owner.notes,
        label="outcome",
    )


def measure_lease(metrics: Instruments, lease: LeaseKeeper) -> None:
    gauge, counter = metrics.gauge, metrics.counter
    gauge("smcp_lease_held", "1 where the last renewal of the lease succeeded, else 0", lambda: lease.held)
    counter("smcp_lease_renewals", "Renewals of the lease that succeeded", lambda: lease.renewals)
    gauge("smcp_lease_age", "Time since lease renewal; 0 before the first", lambda: lease.age, unit="seconds")


def measure_bus(metrics: Instruments, bus: NatsBus) -> Callable[[], None]:
    """Observe the bus from now on; what it returns ends the counting of reconnects."""
    seen: Counter[Connection] = Counter()
    gauge, counter, stats = metrics.gauge, metrics.counter, bus.stats
    gauge("smcp_bus_connected", "1 while connected to NATS, else 0", lambda: bus.connected)
    counter("smcp_bus_reconnects", "Connections that came back", lambda: seen[Connection.UP])
    counter("smcp_bus_slow_consumers", "Times that messages were dropped on the way in", lambda: seen[Connection.SLOW])
    transfers = bus.transfers
    counter("smcp_bus_transfers", "Bodies that went in parts, by their way", lambda: transfers.counts, label="way")
    counter("smcp_bus_transferred", "Bytes of these bodies", lambda: transfers.bytes, unit="bytes", label="way")
    gauge("smcp_bus_pending", "Requests and bodies that are awaited", lambda: stats().pending)
    gauge("smcp_bus_handlers_running", "Handlers that run", lambda: stats().running)
    gauge("smcp_bus_messages_waiting", "Messages that wait for a handler", lambda: stats().waiting)
    gauge("smcp_bus_outgoing", "Large bodies waiting to be pulled", lambda: stats().outgoing_bytes, unit="bytes")
    gauge("smcp_bus_budget_used", "Memory reserved for incoming bodies", lambda: stats().budget_used, unit="bytes")
    gauge("smcp_bus_budget_waiting", "Bodies that wait for a share of the budget", lambda: stats().budget_waiting)

    def watched(connection: Connection) -> None:
        seen[connection] += 1

    return bus.watch(watched)


def measure_audit(metrics: Instruments, trail: Trail) -> None:
    metrics.counter("smcp_audit_records", "Records that the audit trail has taken", lambda: trail.written)
    metrics.counter(
        "smcp_audit_failures", "Records that could not be written when they were made", lambda: trail.failures
    )
    metrics.counter("smcp_audit_lost", "Records that are lost: too many others waited", lambda: trail.lost)
    metrics.gauge("smcp_audit_waiting", "Records that are not written yet", lambda: trail.waiting)
