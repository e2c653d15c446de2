"""The command `smcp-computer`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from smcp_bus.nats.config import configured_credentials
from smcp_computer.config.file import load_config, read_config
from smcp_computer.config.inputs import missing_on_host, unset_here
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.redact import literal_secrets
from smcp_computer.settings import ComputerSettings, check_connection, token_problem
from smcp_service.cli import check_config_option, run_app, serve_command, version_option
from smcp_service.lifecycle import counted
from smcp_service.settings import SettingsError, load_settings

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Runs the MCP servers of this host and offers their tools to an office.",
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="JSON file with the MCP servers and inputs [SMCP_CONFIG]")
]


@app.callback()
def common(version: Annotated[bool, version_option("smcp-computer")] = False) -> None:
    """Runs the MCP servers of this host and offers their tools to an office."""


@app.command("run")
def serve(
    config: ConfigOption = None,
    office: Annotated[str | None, typer.Option(help="The office to join [SMCP_OFFICE]")] = None,
    name: Annotated[str | None, typer.Option(help="This Computer's name in the office [SMCP_NAME]")] = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(help="Where a gateway listens, instead of NATS; may be repeated [SMCP_GATEWAY_URL]"),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="The key or token for the gateway; others on this host may see it here [SMCP_TOKEN]"),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Or a file that has it, read before each connection [SMCP_TOKEN_FILE]")
    ] = None,
    check_config: Annotated[bool, check_config_option()] = False,
) -> None:
    """Run until stopped. Further settings are environment variables, see --check-config."""
    urls = ",".join(gateway) if gateway else None
    settings = load_settings(
        ComputerSettings,
        config=config,
        office=office,
        name=name,
        gateway_url=urls,
        token=token,
        token_file=token_file,
    )
    check_connection(settings, asked_for_token=token is not None or token_file is not None)
    try:
        configuration = load_config(settings.config)
    except ConfigError as error:
        raise SettingsError(*error.problems) from None
    if check_config:
        if (problem := token_problem(settings)) is not None:
            typer.echo(f"warning: {problem}", err=True)
        warnings = [*configuration.warnings, *missing_on_host(configuration, os.environ)]
        _warn(settings.config, [*warnings, *unset_here(configuration, os.environ)])
    credentials = configured_credentials(
        settings.nats_creds, SettingsError, kind="computer", office=settings.office, name=settings.name
    )
    from smcp_computer.app import open_service  # noqa: PLC0415 -- takes a second to load; what is wrong is said before
    from smcp_computer.mcp.stdio import kill_all  # noqa: PLC0415 -- as below

    serve_command(
        "smcp-computer",
        settings,
        lambda: open_service(settings, configuration, credentials),
        check_config=check_config,
        at_once=kill_all,
    )


@app.command()
def validate(
    config: Annotated[Path, typer.Option("--config", help="The JSON file to check")],
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Only warn of what `run` would run with: unknown fields, missing programs")
    ] = False,
) -> None:
    """Check a configuration file: report all errors, values that are missing here, and secrets that Agents can read."""
    try:
        configuration = read_config(config)
    except ConfigError as error:
        raise SettingsError(f"{config}: {error}") from None
    secrets = [
        f"{place}: looks like a literal secret, and every Agent of the office can read it; "
        "use ${input:ID}, ${env:X}, or env and headers"
        for place in literal_secrets(configuration)
    ]
    _warn(config, [*secrets, *unset_here(configuration, os.environ)])
    warnings = [*configuration.warnings, *missing_on_host(configuration, os.environ)]
    if lenient:
        _warn(config, warnings)
    problems = [*configuration.problems, *([] if lenient else warnings)]
    if problems:
        raise SettingsError(*(f"{config}: {problem}" for problem in problems))
    servers, inputs = counted(len(configuration.servers), "server"), counted(len(configuration.inputs), "input")
    typer.echo(f"{config}: {servers}, {inputs}, valid")


def _warn(path: Path, warnings: list[str]) -> None:
    for warning in warnings:
        typer.echo(f"warning: {path}: {warning}", err=True)


def main() -> None:
    """Read the command line, and run."""
    run_app(app)
