"""The command `smcp-registry`."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from smcp_bus.audit_sinks import open_trail
from smcp_bus.nats.config import Credentials, configured_credentials
from smcp_bus.operations import open_service_bus
from smcp_registry.app import EVENTS, Registry, open_registry
from smcp_registry.settings import RegistrySettings
from smcp_service.cli import SHORT_HELP, check_config_option, run_app, serve_command, version_option
from smcp_service.health import Readiness, Stats, serve_health
from smcp_service.metrics import Metrics
from smcp_service.settings import load_settings

app = typer.Typer(add_completion=False, help="Keeps who is in which office. Run any number of them.")


@app.command(context_settings=SHORT_HELP)
def serve(
    version: Annotated[bool, version_option("smcp-registry")] = False,
    check_config: Annotated[bool, check_config_option()] = False,
) -> None:
    """Serve offices until stopped. All settings are environment variables, see --check-config."""
    settings = load_settings(RegistrySettings)
    credentials = configured_credentials(settings.nats_creds)
    serve_command("smcp-registry", settings, lambda: open_service(settings, credentials), check_config=check_config)


@asynccontextmanager
async def open_service(settings: RegistrySettings, credentials: Credentials | None) -> AsyncIterator[Registry]:
    readiness, metrics, stats = Readiness(), Metrics(), Stats()
    async with (
        serve_health(settings, readiness, metrics, stats) as health,
        open_service_bus("smcp-registry", settings, credentials, readiness, metrics, stats) as bus,
        open_trail(EVENTS, settings, bus, metrics) as trail,
        open_registry(settings, bus, readiness=readiness, metrics=metrics, trail=trail) as registry,
    ):
        view = registry.view
        stats["registry"] = lambda: {"owners": len(view.owners()), "tombstones": len(view.tombstones)}
        logging.getLogger(__name__).info("ready", extra={"health": health.url})
        yield registry


def main() -> None:
    run_app(app)
