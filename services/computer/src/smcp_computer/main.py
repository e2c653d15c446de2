"""The command `smcp-computer`."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from smcp_bus.nats.config import configured_credentials
from smcp_computer.config.file import ComputerConfig, imported, load_config, read_config, read_env_file
from smcp_computer.config.inputs import take_secrets
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.secret_store import is_sealed
from smcp_computer.config_commands import pin, secrets_app, servers_app, write_new
from smcp_computer.control_commands import Json, print_json
from smcp_computer.control_commands import app as commands_app
from smcp_computer.redaction import literal_secrets
from smcp_computer.settings import ComputerSettings, check_connection
from smcp_proto.printable import escaped_json
from smcp_service.cli import SHORT_HELP, check_config_option, run_app, serve_command, version_option
from smcp_service.console_script import import_without
from smcp_service.files import replace_files
from smcp_service.lifecycle import Failure, counted
from smcp_service.settings import SettingsError, load_settings

UNIT: Final = "smcp-computer.service"
ETC: Final = Path("/etc/smcp")
HIDDEN: Final = ("home", "root", "tmp")
"""The directories that the unit hides from the service."""

app = typer.Typer(
    no_args_is_help=True,
    help="Runs the MCP servers of this host and offers their tools to an office.",
    context_settings=SHORT_HELP,
)
app.add_typer(commands_app)
app.add_typer(servers_app, name="servers")
app.command()(pin)
app.add_typer(secrets_app, name="secrets")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="JSON file with the MCP servers and inputs. [SMCP_CONFIG]")
]
EnvFileOption = Annotated[
    Path | None, typer.Option("--env-file", help="A file of NAME=value lines for variables that are not set.")
]


@app.callback()
def common(version: Annotated[bool, version_option("smcp-computer")] = False) -> None:
    """Runs the MCP servers of this host and offers their tools to an office."""


@app.command("run")
def serve(
    config: ConfigOption = None,
    office: Annotated[str | None, typer.Option(help="The office to join. [SMCP_OFFICE]")] = None,
    name: Annotated[str | None, typer.Option(help="This Computer's name in the office. [SMCP_NAME]")] = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(help="Where a gateway listens, instead of NATS; may be repeated. [SMCP_GATEWAY_URL]"),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="The key or token for the gateway; others on this host may see it here. [SMCP_TOKEN]"),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the key or token, read before each connection. [SMCP_TOKEN_FILE]")
    ] = None,
    env_file: EnvFileOption = None,
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Offer no tool of a server with unknown tool names. [SMCP_STRICT]")
    ] = None,
    check_config: Annotated[bool, check_config_option()] = False,
) -> None:
    """Run until stopped. Further settings are environment variables, see --check-config."""
    if env_file is not None:
        try:
            for variable, value in read_env_file(env_file).items():
                os.environ.setdefault(variable, value)
        except ConfigError as error:
            raise SettingsError(f"--env-file: {env_file}: {error}") from None
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
    if settings.gateway_url is None:  # over NATS aiohttp is a server alone: its client, with certificates, takes 3 MB
        import_without("aiohttp", *(f"aiohttp.{name}" for name in ("client", "client_reqrep", "connector", "tracing")))
    configuration = load_config(settings.config)
    if check_config:
        from smcp_computer.pins import read_pins  # noqa: PLC0415 -- as below

        read_pins(settings.pins_file)
        _say("warning", settings.config, (*configuration.warnings, *configuration.missing_env_files.values()))
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
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The JSON file to check.")], as_json: Json = False
) -> None:
    """Check a configuration file: report all errors, unknown fields, and literal secrets."""
    configuration = read_config(config)
    warnings = [*configuration.warnings, *configuration.missing_env_files.values(), *literal_secrets(configuration)]
    if as_json:
        print_json({"errors": configuration.problems, "warnings": warnings})
    else:
        _say("error", config, configuration.problems)
        _say("warning", config, warnings)
    if configuration.problems:
        raise typer.Exit(SettingsError.exit_code)
    if not as_json:
        servers, inputs = counted(len(configuration.servers), "server"), counted(len(configuration.inputs), "input")
        typer.echo(f"{config}: {servers}, {inputs}, valid")


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="The file of another MCP host, or a server.json of MCP's registry.")],
    write: Annotated[Path | None, typer.Option("--write", help="Write the result here, where no file is yet.")] = None,
    as_json: Json = False,
) -> None:
    """Convert the file of another MCP host, and print it, or write it with --write. --json includes the warnings."""
    try:
        document, configuration = imported(file)
    except ConfigError as error:
        raise error.at(file) from None
    warnings = [*configuration.warnings, *literal_secrets(configuration)]
    if not as_json:
        _say("warning", file, warnings)
    if write is not None:
        write_new(write, document)
    if as_json or write is None:
        print_json({"configuration": document, "warnings": warnings} if as_json else document)
    else:
        names = (*configuration.servers, *(f"input {each}" for each in configuration.inputs))
        typer.echo(escaped_json(f"{write} is written: {', '.join(names)}"))


@app.command("schema")
def print_schema(as_json: Json = False) -> None:
    """Print the JSON Schema of a configuration file: for editors, by `$schema` in the file."""
    print_json(json.loads((files("smcp_computer") / "config" / "schema.json").read_text(encoding="utf-8")))


@app.command()
def install(
    config: Annotated[Path, typer.Option(help="The JSON file with the MCP servers; it is copied.")],
    office: Annotated[str, typer.Option(help="The office to join.")],
    name: Annotated[str, typer.Option(help="This Computer's name in the office.")],
    gateway: Annotated[str | None, typer.Option(help="Gateway URL (or use --nats).")] = None,
    nats: Annotated[str | None, typer.Option(help="NATS URL.")] = None,
    user: Annotated[str, typer.Option(help="The user that it runs as.")] = "smcp",
    write: Annotated[bool, typer.Option("--write", help="Write the files instead of only showing them.")] = False,
    root: Annotated[Path, typer.Option(help="Write below this directory, for example to build an image.")] = Path("/"),
    as_json: Json = False,
) -> None:
    """Show the hardened unit of systemd for this Computer and its files; --write writes them."""
    if (gateway is None) == (nats is None):
        raise typer.BadParameter("say either --gateway or --nats", param_hint="--gateway")
    # what is wrong would stop the service, which systemd does not restart then
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user):
        raise SettingsError(f"--user: {user!r} is not a Linux user name")
    settings = load_settings(ComputerSettings, config=config, office=office, name=name, gateway_url=gateway)
    check_connection(settings)
    configuration = load_config(config)
    if is_sealed(config.read_bytes()):
        raise SettingsError(f"--config: {config} is encrypted with your key: decrypt it (`smcp-computer secrets`)")
    program = _program_of_service(write=write)
    token = ETC / ("token" if nats is None else "nats.json")
    wanted = [  # and their modes
        (Path("/etc/systemd/system") / UNIT, unit_text(user, program), 0o644),
        (ETC / "computer.env", environment_text(office, name, gateway, nats), 0o640),
        (ETC / "computer.json", config.read_text(encoding="utf-8"), 0o640),
    ]
    if (pins := settings.pins_file).exists():
        wanted.append((ETC / "computer.pins.json", pins.read_text(encoding="utf-8"), 0o644))
    # somebody may have changed those in /etc/smcp
    kept = [path for path, _, _ in wanted if path.parent == ETC and (root / path.relative_to("/")).exists()]
    steps = [
        f"useradd --system --home-dir /var/lib/smcp --shell /usr/sbin/nologin {user}",
        f"chgrp -R {user} {ETC}",
        f"install -m 640 -g {user} {'TOKEN_FILE' if nats is None else 'CREDENTIAL_FILE'} {token}",
        "systemctl daemon-reload",
        f"systemctl enable --now {UNIT}",
        *_input_steps(configuration, f"runuser -u {user} -- env -i HOME=/var/lib/smcp {program}", office, name),
    ]
    said = []
    for path, text, mode in wanted:
        if not write:
            said.append(f"# {path}\n{text}")
        elif path in kept:
            said.append(f"{path} is there, and was left as it is")
        else:
            target = root / path.relative_to("/")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                replace_files({target: text.encode()}, mode=mode)
            except OSError as error:
                raise Failure(f"{target}: cannot be written: {error.strerror} (as root it can: sudo)") from None
            said.append(f"{path} is written")
    if as_json:
        shown = [{"path": str(path), "text": text, "kept": path in kept} for path, text, _ in wanted]
        print_json({"files": shown, "written": write, "next": steps})
    else:
        typer.echo("\n".join([*said, "", "# Next, as root:" if write else "# Then, as root:", *steps]))


def _program_of_service(*, write: bool) -> str:
    """This command. Where the service does not see it, warns, or raises Failure if the unit is to be written."""
    program = shutil.which("smcp-computer", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH')}")
    if program is None:
        raise Failure("the command smcp-computer is not found")
    for used in (program, os.path.realpath(program), os.path.realpath(sys.executable)):
        if Path(used).parts[1] in HIDDEN:
            why = f"the service does not see {used}: install into /opt/smcp (docs/operations.md)"
            if write:
                raise Failure(why)
            typer.echo(escaped_json(f"warning: {why}"), err=True)
            break
    return program


def _input_steps(configuration: ComputerConfig, command: str, office: str, name: str) -> list[str]:
    """They keep the inputs that have neither a default nor a program, once the unit's start has made its directory."""
    asked = [each.id for each in configuration.inputs.values() if getattr(each, "default", "") is None]
    place = f"--office {shlex.quote(office)} --name {shlex.quote(name)}"
    steps = [f"{command} secrets set {shlex.quote(each)} {place}" for each in asked]
    return [*steps, f"systemctl restart {UNIT}"] if steps else []


def unit_text(user: str, program: str) -> str:
    """The unit of deploy/systemd, for this command and a user."""
    text = (files("smcp_computer") / "systemd" / UNIT).read_text(encoding="utf-8")
    text = text.replace("/opt/smcp/bin/smcp-computer", program).replace("/opt/smcp/bin", str(Path(program).parent))
    return text.replace("User=smcp\nGroup=smcp\n", f"User={user}\nGroup={user}\n")


def environment_text(office: str, name: str, gateway: str | None, nats: str | None) -> str:
    """The variables as systemd reads them (systemd.exec, EnvironmentFile)."""
    values = {"SMCP_OFFICE": office, "SMCP_NAME": name}
    if gateway is not None:
        values |= {"SMCP_GATEWAY_URL": gateway, "SMCP_TOKEN_FILE": str(ETC / "token")}
    if nats is not None:
        values |= {"SMCP_NATS_URL": nats, "SMCP_NATS_CREDS": str(ETC / "nats.json")}
    values["SMCP_HEALTH_PORT"] = "8080"
    quoted = {variable: re.sub(r'(["\\`$])', r"\\\1", value) for variable, value in values.items()}
    return "".join(f'{variable}="{value}"\n' for variable, value in quoted.items())


def _say(kind: str, path: Path, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        typer.echo(escaped_json(f"{kind}: {path}: {sentence}"), err=True)  # names in the file may be anything


def main() -> None:
    """Read the command line, and run."""
    run_app(app)
