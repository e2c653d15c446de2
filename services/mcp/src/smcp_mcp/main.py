"""The command `smcp-mcp`."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from smcp_mcp.app import open_mcp
from smcp_mcp.settings import McpSettings, check_access
from smcp_service.cli import SHORT_HELP, allow_many_files, check_config_option, run_app, serve_command, version_option
from smcp_service.health import Readiness, serve_health
from smcp_service.metrics import Metrics
from smcp_service.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command(context_settings=SHORT_HELP)
def serve(
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Where MCP clients connect; 0 is any free port. [SMCP_MCP_PORT]"),
    ] = None,
    version: Annotated[bool, version_option("smcp-mcp")] = False,
    check_config: Annotated[bool, check_config_option()] = False,
) -> None:
    """Serve MCP clients over Streamable HTTP, each office at `/mcp/{office}`."""
    settings = load_settings(McpSettings, mcp_port=port)
    check_access(settings)
    serve_command("smcp-mcp", settings, lambda: open_service(settings), check_config=check_config)


@asynccontextmanager
async def open_service(settings: McpSettings) -> AsyncIterator[str]:
    readiness, metrics = Readiness(), Metrics()
    async with (
        serve_health(settings, readiness, metrics) as health,
        open_mcp(settings, readiness, metrics) as url,
    ):
        if settings.mcp_port == 0:  # the port has to be known at any log level
            typer.echo(f"smcp-mcp listens on {url}")
        logging.getLogger(__name__).info("listening", extra={"url": url, "health": health.url})
        yield url


def main() -> None:
    allow_many_files()
    run_app(app)
