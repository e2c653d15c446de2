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
from smcp_bus.nats.config import load_credentials
from smcp_bus.operations import open_service_bus
from smcp_computer.app import open_service as open_computer_service
from smcp_computer.computer import Computer
from smcp_gateway import app as gateway_app
from smcp_gateway.http_server import HttpServer, open_http_server
from smcp_mcp.settings import McpSettings
from smcp_registry.main import open_service as open_registry_service
from smcp_service.lifecycle import background
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
        secrets = {name: load_credentials(path) for name, path in nats.credentials.items()}
        # a free health port of loopback for each: `SMCP_HEALTH_PORT` is the gateway's
        alone = {"nats_url": nats.url, "nats_ca": None, "health_host": "127.0.0.1", "health_port": 0}
        registry = settings.registry.model_copy(update=alone)
        own = settings.gateway.model_copy(update={"nats_url": nats.url, "nats_ca": None})
        host = settings.computer.model_copy(update={**alone, "gateway_url": None})
        computer: Computer | None = None
        async with (
            open_registry_service(registry, secrets[REGISTRY]),
            open_http_server(own) as front,
            AsyncExitStack() as stack,
        ):
            enter, ready = stack.enter_async_context, front.readiness
            ready.add("computer", lambda: "not ready" if computer is None or computer.readiness.problems() else None)
            _log.info("metrics are at %s/metrics", front.health.url)
            parts = ready, front.metrics, front.stats
            bus = await enter(open_service_bus("smcp up", own, secrets[GATEWAY], *parts))
            content = own.audit_arguments
            trail = await enter(open_trail(gateway_app.EVENTS, own, bus, front.metrics, content=content))
            gateway = await enter(gateway_app.open_gateway(own, bus, front=front, trail=trail))
            front.stats["gateway"] = gateway.held
            if settings.key is not None:
                unshared = "the key file could not be written, so set SMCP_TOKEN for smcp-agent"
                _share(stack, shared_key(gateway.url, settings.key), unshared)
            access = advertise_run(nats.url, nats.credentials[OPERATOR], gateway.url)
            _share(stack, access, "smcp audit will not find this run by itself")
            mcp_url = await enter(_open_mcp(settings.mcp, gateway.url, front))
            computer = await enter(open_computer_service(host, settings.configuration, secrets[COMPUTER], environ))
            front.stats["computer"] = computer.calls.held
            front.stats["updates"] = computer.outbox.held
            ready.note("configuration", lambda: computer.config_problem)
            ready.note("pins", lambda: computer.pins.problem)
            await computer.wait_ready()
            yield System(
                url=gateway.url,
                mcp_url=mcp_url and f"{mcp_url}/mcp/{quote(options.office, safe='')}",
                nats=nats,
                computer=computer,
            )


def _share(stack: AsyncExitStack, file: AbstractContextManager[None], otherwise: str) -> None:
    """One that cannot be written is not a reason to end."""
    try:
        stack.enter_context(file)
    except OSError as error:
        _log.warning("%s: %s", otherwise, error.strerror)


@asynccontextmanager
async def _open_mcp(settings: McpSettings | None, gateway_url: str, front: HttpServer) -> AsyncIterator[str | None]:
    """The URL for MCP clients; None: smcp-mcp is switched off, or has no token for the gateway. `front`'s readiness and
    metrics include them."""
    if settings is None or (settings.auth_configured and settings.gateway_token is None):
        yield None
        return
    from smcp_mcp.app import open_mcp  # noqa: PLC0415 -- the MCP SDK's server takes a quarter of a second to load

    url = gateway_url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    chosen = settings.model_copy(update={"url": url})
    async with open_mcp(chosen, front.readiness, front.metrics, choose=MCP_PORT) as served:
        yield served
