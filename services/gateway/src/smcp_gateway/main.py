"""The command `smcp-gateway`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from smcp_bus.credentials import BadCredentials, load_credentials
from smcp_bus.nats_bus import open_bus
from smcp_bus.nats_config import BusConfig
from smcp_bus.tracing import OWN_DECISION_KEY
from smcp_gateway.app import Gateway, open_gateway
from smcp_gateway.settings import GatewaySettings
from smcp_proto.trace_ids import TRACE_ID_KEY
from smcp_service.cli import check_config_option, run_app, serve_command, version_option
from smcp_service.settings import SettingsError, load_settings

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    version: Annotated[bool, version_option("smcp-gateway")] = False,
    check_config: Annotated[bool, check_config_option()] = False,
) -> None:
    """Serve Agents and Computers over Socket.IO, on `SMCP_GATEWAY_HOST`:`SMCP_GATEWAY_PORT`."""
    settings = load_settings(GatewaySettings)
    config = bus_config(settings)
    serve_command(
        "smcp-gateway",
        settings,
        lambda: open_announced(settings, config),
        check_config=check_config,
        trace_id_key=TRACE_ID_KEY,
        own_decision_key=OWN_DECISION_KEY,
    )


def bus_config(settings: GatewaySettings) -> BusConfig:
    """How this process joins the bus.

    Raises:
        SettingsError: the credentials' file cannot be used.
    """
    try:
        credentials = load_credentials(settings.nats_creds) if settings.nats_creds else None
    except BadCredentials as error:
        raise SettingsError(f"SMCP_NATS_CREDS: {error}") from None
    return BusConfig(
        url=settings.nats_url, credentials=credentials, max_payload=settings.max_payload, name="smcp-gateway"
    )


@asynccontextmanager
async def open_announced(settings: GatewaySettings, config: BusConfig) -> AsyncIterator[Gateway]:
    """A gateway on a bus of its own; one line on standard output says where it listens."""
    async with open_bus(config) as bus, open_gateway(settings, bus) as gateway:
        typer.echo(f"gateway listening on {gateway.url}")
        yield gateway


def main() -> None:
    run_app(app)
