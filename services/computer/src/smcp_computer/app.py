"""The Computer: over NATS (`open_computer`), and as a process with its health port (`open_service`)."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from smcp_bus import registry_contract
from smcp_bus.bus import Bus, Incoming
from smcp_bus.errors import BusError
from smcp_bus.metrics import measure_bus
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.nats.config import Credentials
from smcp_bus.owner import OwnerGate
from smcp_bus.registry_client import RegistryClient
from smcp_bus.tracing import bus_spans
from smcp_computer.announcing import Announcer
from smcp_computer.config.file import ComputerConfig
from smcp_computer.confirmation import Asker, terminal
from smcp_computer.context import Context
from smcp_computer.core import Inside, calls_ended, member, open_inside
from smcp_computer.handlers.abandoned import AbandonedCalls
from smcp_computer.handlers.alive import alive
from smcp_computer.in_flight import InFlight
from smcp_computer.mcp.supervisor import Fleet
from smcp_computer.membership import Membership
from smcp_computer.metrics import measure_lease
from smcp_computer.resource_services import ResourceServices
from smcp_computer.settings import ComputerSettings, token_of
from smcp_computer.subscriptions import subscribed
from smcp_computer.tools.catalogue import Catalogue
from smcp_service.health import Readiness, Stats, serve_health
from smcp_service.lifecycle import Failure
from smcp_service.logging import get_logger
from smcp_service.metrics import Metrics, open_metrics


class ProcessBus(Bus, Protocol):
    """A bus that says who this process is on it."""

    @property
    def process(self) -> str:
        """This process's id, new at each start."""

    @property
    def credential(self) -> str:
        """The name under which it logged in at NATS."""


@dataclass(frozen=True, slots=True)
class Computer:
    """A Computer that serves over NATS."""

    readiness: Readiness
    membership: Membership
    fleet: Fleet
    catalogue: Catalogue
    in_flight: InFlight
    announcer: Announcer
    context: Context
    resources: ResourceServices

    async def wait_ready(self) -> None:
        """Return once it is in its office and each enabled MCP server is ready or has failed its first start."""
        await self.membership.joined.wait()
        await self.fleet.wait_settled()


@asynccontextmanager
async def open_computer(
    settings: ComputerSettings,
    bus: ProcessBus,
    *,
    config: ComputerConfig | None = None,
    readiness: Readiness | None = None,
    asker: Asker | None = None,
    environ: Mapping[str, str] | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Computer]:
    """Run the MCP servers of this host and answer for them in the settings' office, over `bus`.

    It is entered once the subjects are served; joining goes on in the background, for as long as it takes. Leaving it
    takes no new calls, gives the place up, waits for the calls that run (at most `drain_s`), and ends the servers.

    Args:
        config: None reads the settings' file.
        asker: who confirms tools; None where nobody can be asked.
        environ: for the placeholders of the configuration; None is this process's environment.

    Raises:
        ConfigError: the file cannot be used.
        BusError: nats-server refuses the subjects, or is not there.
    """
    readiness = Readiness() if readiness is None else readiness
    registry = RegistryClient(bus, credential=bus.credential, process=bus.process, lease_s=settings.lease_s)
    gate = OwnerGate(bus, lease_s=settings.lease_s)
    readiness.add("nats", lambda: bus.problem)
    async with open_inside(
        settings,
        registry,
        max_body=bus.max_body,
        may_tell=lambda: gate.is_open,
        tracing=bus_spans(),
        readiness=readiness,
        config=config,
        asker=asker,
        environ=environ,
        metrics=metrics,
        more={registry_contract.ALIVE.event: partial(alive, session=bus.process)},
    ) as inside:
        membership = Membership(
            bus,
            registry,
            gate,
            inside.announcer,
            office=settings.office,
            name=settings.name,
            session=bus.process,
            lease_s=settings.lease_s,
            capabilities=lambda: inside.context.capabilities.now,
        )
        membership.listen(inside.in_flight.placed)
        if metrics is not None:
            measure_lease(metrics, membership.lease)
        membership.listen(inside.resources.in_office)
        readiness.add("office", lambda: membership.problem)
        inside.tasks.start(gate.run(), name="gate")
        async with (
            _served(settings, bus, gate, inside, membership),
            calls_ended(inside.in_flight, inside.confirmation, settings.drain_s),
            member(inside.tasks, membership, inside.announcer, inside.resources, inside.fleet),
        ):
            try:
                yield Computer(
                    readiness,
                    membership,
                    inside.fleet,
                    inside.catalogue,
                    inside.in_flight,
                    inside.announcer,
                    inside.context,
                    inside.resources,
                )
            finally:
                readiness.drain()


@asynccontextmanager
async def _served(
    settings: ComputerSettings, bus: ProcessBus, gate: OwnerGate, inside: Inside, membership: Membership
) -> AsyncIterator[None]:
    """The Computer's subjects, while the body runs."""
    abandoned = AbandonedCalls(inside.in_flight, gate, office=settings.office)

    async def notified(incoming: Incoming) -> None:
        abandoned.notified(incoming)
        await inside.resources.notified(incoming)

    async with subscribed(
        bus,
        inside.dispatcher,
        gate,
        inside.in_flight,
        office=settings.office,
        name=settings.name,
        credential=bus.credential,
        process=bus.process,
        on_told=membership.told,
        on_notified=notified,
    ):
        inside.tasks.start(membership.lease.run(), name="lease")
        yield


if TYPE_CHECKING:
    from smcp_computer.gateway.app import GatewayComputer


@asynccontextmanager
async def open_service(
    settings: ComputerSettings, config: ComputerConfig, credentials: Credentials | None
) -> AsyncIterator["Computer | GatewayComputer"]:
    """The Computer with its own connection, to NATS or to a gateway, and health port.

    Raises:
        Failure: NATS cannot be reached or refuses the subjects, or the health port is taken.
    """
    readiness, stats = Readiness(), Stats()
    async with AsyncExitStack() as stack:
        metrics = await stack.enter_async_context(open_metrics("smcp-computer"))
        health = await stack.enter_async_context(
            serve_health(
                readiness, settings.health_host, settings.health_port, stats if settings.stats else None, metrics
            )
        )
        computer: Computer | GatewayComputer
        if settings.gateway_url is not None:
            from smcp_computer.gateway.app import open_gateway_computer  # noqa: PLC0415 -- Socket.IO is for this way alone

            computer = await stack.enter_async_context(
                open_gateway_computer(
                    settings,
                    token=token_of(settings),
                    config=config,
                    readiness=readiness,
                    asker=terminal(),
                    metrics=metrics,
                )
            )
        else:
            computer = await _over_nats(stack, settings, config, credentials, readiness, stats, metrics)
        stats.add("computer", computer.in_flight.held)
        stats.add("updates", computer.announcer.held)
        get_logger(__name__).info("serving", health=health.url, office=settings.office, computer=settings.name)
        yield computer


async def _over_nats(
    stack: AsyncExitStack,
    settings: ComputerSettings,
    config: ComputerConfig,
    credentials: Credentials | None,
    readiness: Readiness,
    stats: Stats,
    metrics: Metrics,
) -> Computer:
    bus_config = BusConfig(
        url=settings.nats_url,
        credentials=credentials,
        ca=settings.nats_ca,
        max_payload=settings.max_payload,
        name="smcp-computer",
        drain_timeout=settings.drain_s,
    )
    try:
        bus = await stack.enter_async_context(
            open_bus(bus_config, opening=lambda bus: readiness.starting("nats", lambda: bus.problem))
        )
        computer = await stack.enter_async_context(
            open_computer(settings, bus, config=config, readiness=readiness, asker=terminal(), metrics=metrics)
        )
    except BusError as error:
        raise Failure(f"NATS: {str(error) or type(error).__name__}") from error
    stack.callback(measure_bus(metrics.meter, bus))
    stats.add("bus", lambda: asdict(bus.stats()))
    return computer
