"""Metrics: how requests ended, with labels from small closed sets, and what the connection to NATS holds."""

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from smcp_bus.bus import Connection
from smcp_bus.dispatch import Answer
from smcp_bus.nats.bus import NatsBus
from smcp_bus.registry_contract import is_internal
from smcp_bus.tracing import tool_failure
from smcp_proto.catalog import CATALOG, Row
from smcp_proto.errors import ErrorCode

OTHER: Final = "other"
"""An event that is not in the catalog, or a code that is not in the protocol."""

_CODES: Final = {int(code): str(int(code)) for code in ErrorCode}
_LONGEST: Final = 4096
"""Bytes of an answer that may be one of those that a server makes in the place of a tool's: they are short."""


def counted(add: Callable[[float, str, str], None]) -> Callable[[Row, float, Answer | None], None]:
    """For a dispatcher's `ended`: each request goes to `add` as its seconds, its event and its outcome."""

    def ended(row: Row, seconds: float, answer: Answer | None) -> None:
        event = row.event if row.event in CATALOG or is_internal(row) else OTHER
        add(seconds, event, outcome_of(answer))

    return ended


def outcome_of(answer: Answer | None) -> str:
    """`ok`, `timeout` or `cancelled` (a tool's, by its result's `meta`), the error's code, `other`, or `broken_off`."""
    if answer is None:
        return "broken_off"
    if answer.error is not None:
        return _CODES.get(answer.error, OTHER)
    failure = tool_failure(answer.body) if len(answer.body) <= _LONGEST else ""
    return failure if failure in ("timeout", "cancelled") else "ok"


class Instruments(Protocol):
    """As `smcp_service.metrics.Metrics`."""

    def gauge(self, name: str, description: str, read: Callable[[], float], *, unit: str = "1") -> None: ...
    def counter(self, name: str, description: str, read: Callable[[], float]) -> None: ...


def measure_bus(metrics: Instruments, bus: NatsBus) -> Callable[[], None]:
    """Observe the bus from now on; what it returns ends the counting of reconnects."""
    seen: Counter[Connection] = Counter()
    gauge, counter, stats = metrics.gauge, metrics.counter, bus.stats
    gauge("smcp_bus_connected", "1 while connected to NATS, else 0", lambda: bus.connected)
    counter("smcp_bus_reconnects", "Connections that came back", lambda: seen[Connection.UP])
    counter("smcp_bus_slow_consumers", "Times that messages were dropped on the way in", lambda: seen[Connection.SLOW])
    gauge("smcp_bus_pending", "Requests and bodies that are awaited", lambda: stats().pending)
    gauge("smcp_bus_handlers_running", "Handlers that run", lambda: stats().running)
    gauge("smcp_bus_messages_waiting", "Messages that wait for a handler", lambda: stats().waiting)
    gauge("smcp_bus_outgoing", "Large bodies until they are pulled", lambda: stats().outgoing_bytes, unit="By")
    gauge("smcp_bus_budget_used", "Memory given out to bodies on their way in", lambda: stats().budget_used, unit="By")
    gauge("smcp_bus_budget_waiting", "Bodies that wait for a share of the budget", lambda: stats().budget_waiting)

    def watched(connection: Connection) -> None:
        seen[connection] += 1

    return bus.watch(watched)
