"""The command `smcp-computer`."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from smcp_bus.nats.config import configured_credentials
from smcp_computer.config.file import ComputerConfig, imported, read_config, read_env_file
from smcp_computer.config.inputs import take_secrets
from smcp_computer.config.lint import ConfigError
from smcp_computer.control_commands import Json, print_json
from smcp_computer.control_commands import app as commands_app
from smcp_computer.install_command import app as install_app
from smcp_computer.redaction import literal_secrets
from smcp_computer.secrets_command import app as secrets_app
from smcp_computer.servers_commands import app as servers_app
from smcp_computer.servers_commands import pin, write_new
from smcp_computer.settings import ComputerSettings, check_connection, pins_path
from smcp_proto.printable import escaped_json
from smcp_service.cli import SHORT_HELP, check_config_option, run_app, serve_command, version_option
from smcp_service.lifecycle import counted
from smcp_service.settings import SettingsError, load_settings

app = typer.Typer(
    no_args_is_help=True,
    help="Runs the MCP servers of this host and offers their tools to an office.",
    context_settings=SHORT_HELP,
)
app.add_typer(commands_app)
app.add_typer(servers_app, name="servers")
app.add_typer(install_app)
app.command()(pin)
app.add_typer(secrets_app, name="secrets")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="JSON file with the MCP servers and inputs [SMCP_CONFIG]")
]
EnvFileOption = Annotated[
    Path | None, typer.Option("--env-file", help="A file of NAME=value lines for variables that are not set")
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
        Path | None, typer.Option(help="A file with the key or token, read before each connection [SMCP_TOKEN_FILE]")
    ] = None,
    env_file: EnvFileOption = None,
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Offer no tool of a server with unknown tool names [SMCP_STRICT]")
    ] = None,
    check_config: Annotated[bool, check_config_option()] = False,
) -> None:
    """Run until stopped. Further settings are environment variables, see --check-config."""
    _read_environment(env_file)
    urls = ",".join(gateway) if gateway else None
    settings = load_settings(
        ComputerSettings,
        config=config,
        office=office,
        name=name,
        gateway_url=urls,
        token=token,
        token_file=token_file,
        strict=strict,
    )
    check_connection(settings)
    configuration = _read_config(settings.config)
    if check_config:
        from smcp_computer.pins import read_pins  # noqa: PLC0415 -- as below

        read_pins(pins_path(settings))
    if check_config or configuration.problems:
        _say("warning", settings.config, configuration.warnings)
    if configuration.problems:
        raise SettingsError(*(f"{settings.config}: {problem}" for problem in configuration.problems))
    if not check_config and not {"gateway_url", "nats_url", "nats_creds"} & settings.model_fields_set:
        where = "is missing: where a gateway listens, such as http://127.0.0.1:8000 (`smcp up` prints it)"
        raise SettingsError(f"--gateway (SMCP_GATEWAY_URL): {where}; or set SMCP_NATS_URL, to connect over NATS")
    credentials = configured_credentials(settings.nats_creds)
    from smcp_computer.app import open_service  # noqa: PLC0415 -- takes a second to load; what is wrong is said before
    from smcp_computer.mcp.process import kill_children  # noqa: PLC0415 -- as below
    from smcp_computer.mcp.reaper import hide_memory  # noqa: PLC0415 -- as below

    hide_memory()
    environ = take_secrets()
    serve_command(
        "smcp-computer",
        settings,
        lambda: open_service(settings, configuration, credentials, environ),
        check_config=check_config,
        at_once=kill_children,
    )


@app.command()
def validate(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The JSON file to check")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Take warnings, such as of literal secrets, for errors")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a configuration file: report all errors, unknown fields, and literal secrets."""
    configuration = _read_config(config)
    warnings = [*configuration.warnings, *literal_secrets(configuration)]
    errors = [*configuration.problems, *(warnings if strict else [])]
    warnings = [] if strict else warnings
    if as_json:
        print_json({"errors": errors, "warnings": warnings})
    else:
        _say("error", config, errors)
        _say("warning", config, warnings)
    if errors:
        raise typer.Exit(SettingsError.exit_code)
    if not as_json:
        servers, inputs = counted(len(configuration.servers), "server"), counted(len(configuration.inputs), "input")
        typer.echo(f"{config}: {servers}, {inputs}, valid")


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="The file of another MCP host, or a server.json of MCP's registry")],
    write: Annotated[Path | None, typer.Option("--write", help="Write the result here, where no file is yet")] = None,
    as_json: Json = False,
) -> None:
    """Convert the file of another MCP host; print it, or also write it with --write. --json includes the warnings."""
    with _refused(file):
        document, configuration = imported(file)
    warnings = [*configuration.warnings, *literal_secrets(configuration)]
    if not as_json:
        _say("warning", file, warnings)
    if write is not None:
        with _refused(write):
            write_new(write, document)
        if not as_json:
            typer.echo(f"{write} is written", err=True)
    print_json({"configuration": document, "warnings": warnings} if as_json else document)


@app.command("schema")
def print_schema(as_json: Json = False) -> None:
    """Print the JSON Schema of a configuration file: for editors, by `$schema` in the file."""
    print_json(json.loads((files("smcp_computer") / "config" / "schema.json").read_text(encoding="utf-8")))


def _read_config(path: Path) -> ComputerConfig:
    try:
        return read_config(path)
    except ConfigError as error:
        return ComputerConfig(problems=error.problems)


def _read_environment(path: Path | None) -> None:
    """Variables that are set already stay as they are."""
    if path is None:
        return
    try:
        variables = read_env_file(path)
    except ConfigError as error:
        raise SettingsError(f"--env-file: {path} {error}") from None
    for name, value in variables.items():
        os.environ.setdefault(name, value)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        _say("error", path, error.problems)
        _say("warning", path, error.warnings)
        raise typer.Exit(SettingsError.exit_code) from None


def _say(kind: str, path: Path, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        typer.echo(escaped_json(f"{kind}: {path}: {sentence}"), err=True)  # names in the file may be anything


def main() -> None:
    """Read the command line, and run."""
    run_app(app)
