"""The command `smcp-computer install`: sets up a Computer as a systemd service, or shows the files and commands for it.

The unit is that of deploy/systemd with the paths of this host. It starts nothing, but shows the commands that do.
"""

import re
import shutil
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from smcp_computer.config.file import load_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.control_commands import Json, print_json
from smcp_computer.settings import ComputerSettings, check_connection
from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError, load_settings

UNIT: Final = "smcp-computer.service"
ETC: Final = Path("/etc/smcp")
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")

app = typer.Typer()


@dataclass(frozen=True)
class _File:
    path: Path
    text: str
    mode: int
    keep: bool
    """Do not replace an existing file: somebody may have changed it."""


@app.command()
def install(
    config: Annotated[Path, typer.Option(help="The JSON file with the MCP servers; it is copied")],
    office: Annotated[str, typer.Option(help="The office to join")],
    name: Annotated[str, typer.Option(help="This Computer's name in the office")],
    gateway: Annotated[str | None, typer.Option(help="Where a gateway listens; or say --nats")] = None,
    nats: Annotated[str | None, typer.Option(help="Where NATS is")] = None,
    user: Annotated[str, typer.Option(help="The user that it runs as")] = "smcp",
    write: Annotated[bool, typer.Option("--write", help="Write the files instead of only showing them")] = False,
    root: Annotated[Path, typer.Option(help="Write below this directory, for example to build an image")] = Path("/"),
    as_json: Json = False,
) -> None:
    """Show the hardened unit of systemd for this Computer and its files; --write writes them."""
    if (gateway is None) == (nats is None):
        raise typer.BadParameter("say either --gateway or --nats", param_hint="--gateway")
    _check(config, office, name, gateway, user)
    command = _command()
    text = config.read_text(encoding="utf-8")
    wanted = [
        _File(Path("/etc/systemd/system") / UNIT, unit_text(command, user), 0o644, keep=False),
        _File(ETC / "computer.env", environment_text(office, name, gateway, nats), 0o640, keep=True),
        _File(ETC / "computer.json", text, 0o640, keep=True),
    ]
    secret = ETC / ("token" if nats is None else "nats.json")
    steps = [
        f"useradd --system --home-dir /var/lib/smcp --shell /usr/sbin/nologin {user}",
        f"chgrp -R {user} {ETC}",
        f"install -m 640 -g {user} {'TOKEN_FILE' if nats is None else 'CREDENTIAL_FILE'} {secret}",
        "systemctl daemon-reload",
        f"systemctl enable --now {UNIT}",
    ]
    kept = [each.path for each in wanted if each.keep and (root / each.path.relative_to("/")).exists()]
    if write:
        for each in wanted:
            if each.path not in kept:
                _write(root / each.path.relative_to("/"), each)
    if as_json:
        shown = [{"path": str(each.path), "text": each.text, "kept": each.path in kept} for each in wanted]
        print_json({"files": shown, "written": write, "next": steps})
    else:
        for each in wanted:
            if write:
                typer.echo(f"{each.path} {'is there, and was left as it is' if each.path in kept else 'is written'}")
            else:
                typer.echo(f"# {each.path}\n{each.text}")
        typer.echo("\n".join(["", "# Next, as root:" if write else "# Then, as root:", *steps]))


def _check(config: Path, office: str, name: str, gateway: str | None, user: str) -> None:
    """Raises SettingsError: something would stop the service, as systemd does not restart it then."""
    if not _USER.fullmatch(user):
        raise SettingsError(f"--user: {user!r} is no name of a user of Linux")
    check_connection(load_settings(ComputerSettings, config=config, office=office, name=name, gateway_url=gateway))
    try:
        load_config(config)
    except ConfigError as error:
        raise SettingsError(*(f"--config: {each}" for each in error.problems), warnings=error.warnings) from None


def unit_text(command: Path, user: str) -> str:
    """The unit, for the command where it is installed."""
    text = (files("smcp_computer") / "systemd" / UNIT).read_text(encoding="utf-8")
    text = text.replace("/opt/smcp/bin/smcp-computer", str(command)).replace("/opt/smcp/bin", str(command.parent))
    return text.replace("User=smcp\nGroup=smcp\n", f"User={user}\nGroup={user}\n")


def environment_text(office: str, name: str, gateway: str | None, nats: str | None) -> str:
    values = {"SMCP_OFFICE": office, "SMCP_NAME": name}
    if gateway is not None:
        values |= {"SMCP_GATEWAY_URL": gateway, "SMCP_TOKEN_FILE": str(ETC / "token")}
    if nats is not None:
        values |= {"SMCP_NATS_URL": nats, "SMCP_NATS_CREDS": str(ETC / "nats.json")}
    values["SMCP_HEALTH_PORT"] = "8080"
    return "".join(f"{variable}={_quoted(value)}\n" for variable, value in values.items())


def _quoted(value: str) -> str:
    """As systemd reads a value (systemd.exec, EnvironmentFile)."""
    if value.isascii() and value.replace("/", "").replace(":", "").replace("-", "").replace(".", "").isalnum():
        return value
    return '"' + "".join(f"\\{each}" if each in '"\\`$' else each for each in value) + '"'


def _command() -> Path:
    beside = Path(sys.executable).with_name("smcp-computer")
    found = shutil.which("smcp-computer")
    if not beside.is_file() and found is None:
        raise Failure("the command smcp-computer is not found")
    return beside if beside.is_file() else Path(found or "")


def _write(path: Path, file: _File) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=file.mode)
        path.chmod(file.mode)
        path.write_text(file.text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror} (as root it can: sudo)") from None
