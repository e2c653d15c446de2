"""What operators see of a process that serves, and change while it runs: its metrics, and the level of its log.

All processes serve one subject for `smcp log-level`; each that is meant answers.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from smcp_bus.audit import Trail
from smcp_bus.bus import BusError, ConnectionState, Incoming, Reply, describe
from smcp_bus.nats.bus import Bus, open_bus
from smcp_bus.nats.config import BusConfig, Credentials
from smcp_bus.owner import Owner
from smcp_bus.registry_client import LeaseKeeper
from smcp_bus.subjects import LOG_LEVEL
from smcp_service.health import Readiness, Stats
from smcp_service.lifecycle import Failure
from smcp_service.logging import LEVEL, Level
from smcp_service.metrics import Metrics
from smcp_service.settings import LogLevel, ServiceSettings

_log = logging.getLogger("smcp_bus.operations")


@asynccontextmanager
async def open_service_bus(
    service: str,
    settings: ServiceSettings,
    credentials: Credentials | None,
    readiness: Readiness,
    metrics: Metrics,
    stats: Stats,
    *,
    drain_s: float | None = None,
    hint: str = "",
) -> AsyncIterator[Bus]:
    """The bus of a service, with what operators see of it.

    Args:
        drain_s: how long closing waits for handlers that run (seconds); None: as the settings say.
        hint: the end of the message where NATS cannot be reached.

    Raises:
        Failure: NATS cannot be reached, or refuses what the body asks of it.
    """
    config = BusConfig(
        url=settings.nats_url,
        credentials=credentials,
        ca=settings.nats_ca,
        max_payload=settings.max_payload,
        name=service,
        drain_timeout=settings.drain_s if drain_s is None else drain_s,
    )
    try:
        async with (
            open_bus(config, opening=lambda bus: readiness.starting("nats", lambda: bus.problem)) as bus,
            serve_log_level(bus, service),
        ):
            stats["bus"] = bus.stats
            measure_bus(metrics, bus)
            yield bus
    except BusError as error:
        raise Failure(f"NATS (SMCP_NATS_URL): {describe(error)}{hint}") from error


class LevelQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid")

    level: LogLevel | None = None
    """None: change nothing."""
    credential: Annotated[str, Field(max_length=1024)] | None = None
    """Of the processes that are meant; None: all."""


class LevelAnswer(BaseModel):
    service: str
    credential: str
    process: str
    level: str


@asynccontextmanager
async def serve_log_level(bus: Bus, service: str, switch: Level = LEVEL) -> AsyncIterator[None]:
    """Answer while the body runs; where nats-server permits it, which an older configuration does not."""

    async def handle(incoming: Incoming) -> Reply:
        try:
            question = LevelQuestion.model_validate_json(incoming.body)
        except ValidationError:
            return Reply(b'{"error":"not a request for a level"}')
        is_meant = question.credential in (None, bus.credential)
        if is_meant and question.level is not None and question.level != switch.name:
            switch.set(question.level)
        answer = LevelAnswer(service=service, credential=bus.credential, process=bus.process, level=switch.name)
        return Reply(answer.model_dump_json().encode())

    async with AsyncExitStack() as stack:
        try:
            stack.push_async_callback((await bus.serve(LOG_LEVEL, handle)).drain)
        except BusError as error:
            _log.info("smcp log-level does not reach this process: %s", error)
        yield


def measure_owner(metrics: Metrics, owner: Owner) -> None:
    counter = metrics.counter
    repeats = "Calls that were asked for again and not run again, by what there was of them"
    counter("smcp_calls_repeated", repeats, lambda: owner.repeats, label="found")
    notes = "Notes of the progress of tool calls, by what became of them"
    counter("smcp_tool_progress_notes", notes, lambda: owner.notes, label="outcome")


def measure_lease(metrics: Metrics, lease: LeaseKeeper) -> None:
    gauge, counter = metrics.gauge, metrics.counter
    gauge("smcp_lease_held", "1 where the last renewal of the lease succeeded, else 0", lambda: lease.held)
    counter("smcp_lease_renewals", "Renewals of the lease that succeeded", lambda: lease.renewals)
    gauge("smcp_lease_age", "Time since lease renewal; 0 before the first", lambda: lease.age, unit="seconds")


def measure_bus(metrics: Metrics, bus: Bus) -> None:
    seen: Counter[ConnectionState] = Counter()
    bus.watch(lambda connection: seen.update((connection,)))
    gauge, counter, stats, transfers = metrics.gauge, metrics.counter, bus.stats, bus.transfers
    gauge("smcp_bus_connected", "1 while connected to NATS, else 0", lambda: bus.connected)
    counter("smcp_bus_reconnects", "Connections that came back", lambda: seen[ConnectionState.UP])
    counter("smcp_bus_slow_consumers", "Times that incoming messages were dropped", lambda: seen[ConnectionState.SLOW])
    counter("smcp_bus_transfers", "Bodies that went in parts, by their way", lambda: transfers.counts, label="way")
    counter("smcp_bus_transferred", "Bytes of these bodies", lambda: transfers.bytes, unit="bytes", label="way")
    gauge("smcp_bus_messages_waiting", "Messages that wait for a handler", lambda: stats()["waiting"])
    gauge("smcp_bus_outgoing", "Large bodies waiting to be pulled", lambda: stats()["outgoing_bytes"], unit="bytes")
    gauge("smcp_bus_budget_used", "Memory reserved for incoming bodies", lambda: stats()["budget_used"], unit="bytes")
    gauge("smcp_bus_budget_waiting", "Bodies that wait for a share of the budget", lambda: stats()["budget_waiting"])


def measure_audit(metrics: Metrics, trail: Trail) -> None:
    gauge, counter = metrics.gauge, metrics.counter
    counter("smcp_audit_records", "Records that the audit trail has taken", lambda: trail.written)
    counter("smcp_audit_failures", "Records that could not be written when they were made", lambda: trail.failures)
    counter("smcp_audit_lost", "Records that are lost: too many others waited", lambda: trail.lost)
    gauge("smcp_audit_waiting", "Records that are not written yet", lambda: trail.waiting)
