"""The whole system in one process: nats-server as a child, and a registry, a gateway and a Computer beside it, each
with the credential, permissions and connection that it would have on a machine of its own.
"""

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from smcp_agent.connecting.options import shared_key
from smcp_bus.audit_sinks import open_trail
from smcp_bus.bus import BusError
from smcp_bus.nats.bus import Bus, open_bus
from smcp_bus.nats.config import BusConfig, load_credentials
from smcp_bus.operations import serve_log_level
from smcp_computer.app import open_approvals, open_computer
from smcp_computer.computer import Computer
from smcp_computer.control import open_control
from smcp_computer.terminal import open_terminal
from smcp_gateway import app as gateway_app
from smcp_gateway.http_server import HttpServer, open_http_server
from smcp_gateway.settings import GatewaySettings
from smcp_mcp.settings import McpSettings
from smcp_registry import app as registry_app
from smcp_service.health import Readiness
from smcp_service.lifecycle import Failure, background
from smcp_service.settings import ServiceSettings
from smcp_standalone.nats_server import NatsServer, open_nats_server
from smcp_standalone.operator_commands import advertise_run
from smcp_standalone.settings import COMPUTER, GATEWAY, MCP_PORT, OPERATOR, REGISTRY, UpOptions, UpSettings, up_model

_log = logging.getLogger("smcp_standalone.app")


@dataclass(frozen=True, slots=True)
class System:
    url: str
    mcp_url: str | None
    """Where MCP clients use the office; None: they cannot."""
    nats: NatsServer
    computer: Computer

    @property
    def failed(self) -> dict[str, str]:
        """The MCP servers of the Computer that are not ready, and why."""
        return {name: each.reason for name, each in self.computer.fleet.supervisors.items() if not each.ready}


@asynccontextmanager
async def open_system(
    options: UpOptions, settings: UpSettings, directory: Path, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[System]:
    """Run everything while the body runs; leaving it drains the Computer first and stops nats-server last. `environ` is
    for the placeholders of the Computer's configuration. Raises Failure, also where nats-server ends by itself."""
    async with open_nats_server(up_model(options), directory / "nats") as nats, background() as tasks:
        tasks.start(nats.wait_for_end(), name="nats-server")
        ready = Readiness()
        async with (
            AsyncExitStack() as stack,
            _connected(nats, REGISTRY, settings.registry) as registry_bus,
            open_trail(registry_app.EVENTS, settings.registry, registry_bus) as registry_trail,
            registry_app.open_registry(settings.registry, registry_bus, trail=registry_trail),
            _connected(nats, GATEWAY, settings.gateway) as gateway_bus,
            _http_server(settings.gateway, computer=ready) as front,
            serve_log_level(gateway_bus, "smcp up"),
            open_trail(
                gateway_app.EVENTS,
                settings.gateway,
                gateway_bus,
                front.metrics,
                content=settings.gateway.audit_arguments,
            ) as trail,
            gateway_app.open_gateway(settings.gateway, gateway_bus, front=front, trail=trail) as gateway,
            _connected(nats, COMPUTER, settings.computer) as computer_bus,
            open_approvals(settings.computer, computer_bus) as computer_trail,
        ):
            if settings.key is not None:
                unshared = "the key file could not be written, so set SMCP_TOKEN for smcp-agent"
                _share(stack, shared_key(gateway.url, settings.key), unshared)
            access = advertise_run(nats.url, nats.credentials[OPERATOR], gateway.url)
            _share(stack, access, "smcp audit will not find this run by itself")
            terminal = stack.enter_context(open_terminal())
            front.stats["gateway"] = gateway.held
            async with (
                _open_mcp(settings.served_mcp, gateway.url, front) as mcp_url,
                open_control(settings.computer) as control,
                open_computer(
                    settings.computer,
                    computer_bus,
                    config=settings.configuration,
                    environ=environ,
                    readiness=ready,
                    terminal=terminal,
                    trail=computer_trail,
                ) as computer,
            ):
                control.computer = computer
                front.stats["computer"] = computer.calls.held
                front.stats["updates"] = computer.outbox.held
                gateway.readiness.note("configuration", lambda: computer.config_problem)
                gateway.readiness.note("pins", lambda: computer.pins.problem)
                computer.tasks.start(computer.follow_file(), name="configuration")
                await computer.wait_ready()
                yield System(
                    url=gateway.url,
                    mcp_url=mcp_url and f"{mcp_url}/mcp/{quote(options.office, safe='')}",
                    nats=nats,
                    computer=computer,
                )


def _share(stack: AsyncExitStack, file: AbstractContextManager[None], otherwise: str) -> None:
    """One that cannot be written is no reason to end."""
    try:
        stack.enter_context(file)
    except OSError as error:
        _log.warning("%s: %s", otherwise, error.strerror)


@asynccontextmanager
async def _http_server(settings: GatewaySettings, *, computer: Readiness) -> AsyncIterator[HttpServer]:
    """The gateway's, which is ready when the Computer is, too: from the first request on, before there is one."""
    async with open_http_server(settings) as front:
        front.readiness.add("computer", lambda: "not ready" if computer.problems() else None)
        _log.info("metrics are at %s/metrics", front.health.url)
        yield front


@asynccontextmanager
async def _open_mcp(settings: McpSettings | None, gateway_url: str, front: HttpServer) -> AsyncIterator[str | None]:
    """The URL for MCP clients, or None. `front`'s readiness and metrics include them."""
    if settings is None:
        yield None
        return
    from smcp_mcp.app import open_mcp  # noqa: PLC0415 -- the MCP SDK's server takes a quarter of a second to load

    url = gateway_url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    chosen = settings.model_copy(update={"url": url})
    async with open_mcp(chosen, front.readiness, front.metrics, choose=MCP_PORT) as served:
        yield served


@asynccontextmanager
async def _connected(nats: NatsServer, credential: str, settings: ServiceSettings) -> AsyncIterator[Bus]:
    config = BusConfig(
        url=nats.url,
        credentials=load_credentials(nats.credentials[credential]),
        max_payload=settings.max_payload,
        name=credential,
        drain_timeout=settings.drain_s,
    )
    try:
        async with open_bus(config) as bus:
            yield bus
    except BusError as error:
        raise Failure(f"the embedded nats-server: {error}") from error
