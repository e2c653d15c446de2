"""A Computer as a process of its own: its connection, its health port, and itself."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from smcp_bus.errors import BusError
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.nats.credentials import Credentials
from smcp_bus.nats.measures import measure_bus
from smcp_computer.app import Computer, open_computer
from smcp_computer.config.file import ComputerConfig
from smcp_computer.connecting import token_of
from smcp_computer.settings import ComputerSettings
from smcp_computer.terminal import terminal
from smcp_service.failure import Failure
from smcp_service.health import Readiness, serve_health
from smcp_service.logging import get_logger
from smcp_service.metrics import Metrics, open_metrics
from smcp_service.stats import Stats

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
