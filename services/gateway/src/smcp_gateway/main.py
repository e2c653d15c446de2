"""The command `smcp-gateway`."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from smcp_auth.settings import check_auth
from smcp_bus.audit_sinks import open_trail
from smcp_bus.nats.config import Credentials, configured_credentials
from smcp_bus.operations import open_service_bus
from smcp_gateway.app import EVENTS, LAST_TASKS_S, Gateway, open_gateway
from smcp_gateway.http_server import open_http_server
from smcp_gateway.settings import GatewaySettings
from smcp_service import cli
from smcp_service.settings import load_settings

_log = logging.getLogger("smcp_gateway.main")

app = typer.Typer(add_completion=False)


@app.command(context_settings=cli.SHORT_HELP)
def serve(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Where clients connect; 0: any free port. [SMCP_GATEWAY_PORT]")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Listen on any address even without authentication. [SMCP_INSECURE]"),
    ] = None,
    version: Annotated[bool, cli.version_option("smcp-gateway")] = False,
    check_config: Annotated[bool, cli.check_config_option()] = False,
) -> None:
    """Serve Agents and Computers over Socket.IO, on `SMCP_GATEWAY_HOST`:`SMCP_GATEWAY_PORT`."""
    settings = load_settings(GatewaySettings, gateway_port=port, insecure=insecure)
    check_auth(settings, "SMCP_GATEWAY_HOST", settings.gateway_host)
    credentials = configured_credentials(settings.nats_creds)
    cli.serve_command("smcp-gateway", settings, lambda: open_service(settings, credentials), check_config=check_config)


@asynccontextmanager
async def open_service(settings: GatewaySettings, credentials: Credentials | None) -> AsyncIterator[Gateway]:
    """A gateway on its own bus. It listens before it connects to NATS, so that `/livez` is answered meanwhile.

    Raises Failure: the address is not available, or NATS cannot be reached.
    """
    async with open_http_server(settings) as front:
        addresses = {"url": front.listener.url, "health": front.health.url}
        _log.info("listening", extra=addresses)
        if settings.gateway_port == 0:  # the port has to be known at any log level
            typer.echo(f"smcp-gateway listens on {front.listener.url}")
        parts = front.readiness, front.metrics, front.stats
        async with (
            open_service_bus("smcp-gateway", settings, credentials, *parts, drain_s=LAST_TASKS_S) as bus,
            open_trail(EVENTS, settings, bus, front.metrics, content=settings.audit_arguments) as trail,
            open_gateway(settings, bus, front=front, trail=trail) as gateway,
        ):
            front.stats["gateway"] = gateway.held
            cli.use_huge_pages()
            _log.info("ready", extra=addresses)
            yield gateway


def main() -> None:
    cli.allow_many_files()
    cli.keep_freed_memory()
    cli.run_app(app)
