"""Metrics: how requests ended, with labels from small closed sets, and what the connection to NATS holds."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from smcp_bus.bus import Connection
from smcp_bus.dispatch import Answer
from smcp_bus.nats.bus import NatsBus
from smcp_bus.nats.config import BusStats
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


def measure_bus(meter: Meter, bus: NatsBus) -> Callable[[], None]:
    """Observe the bus from now on, once for each meter; what it returns ends the counting of reconnects."""
    seen: Counter[Connection] = Counter()

    def observed(read: Callable[[], float]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        return [lambda _: [Observation(read())]]

    def of_stats(read: Callable[[BusStats], float]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        return observed(lambda: read(bus.stats()))

    gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
    gauge("smcp_bus_connected", observed(lambda: bus.connected), description="1 while connected to NATS, else 0")
    counter("smcp_bus_reconnects", observed(lambda: seen[Connection.UP]), description="Connections that came back")
    counter(
        "smcp_bus_slow_consumers",
        observed(lambda: seen[Connection.SLOW]),
        description="Times that messages were dropped on the way in",
    )
    gauge("smcp_bus_pending", of_stats(lambda s: s.pending), description="Requests and bodies that are awaited")
    gauge("smcp_bus_handlers_running", of_stats(lambda s: s.running), description="Handlers that run")
    gauge("smcp_bus_messages_waiting", of_stats(lambda s: s.waiting), description="Messages that wait for a handler")
    gauge(
        "smcp_bus_outgoing", of_stats(lambda s: s.outgoing_bytes), "By", "Bytes of large bodies until they are pulled"
    )
    gauge("smcp_bus_budget_used", of_stats(lambda s: s.budget_used), "By", "Bytes given out to bodies on their way in")
    gauge(
        "smcp_bus_budget_waiting",
        of_stats(lambda s: s.budget_waiting),
        description="Bodies that wait for a share of the budget",
    )

    def watched(connection: Connection) -> None:
        seen[connection] += 1

    return bus.watch(watched)
