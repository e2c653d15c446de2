"""The commands of `smcp-computer` that write files of this host: `pin` the tools that `pins` compares, `secrets …` for
what `config.secret_store` keeps (also while a Computer runs), and `install` for a service of systemd.

What `pin` writes is what `control` says that the servers list now; the difference is shown before. The unit is the one
of deploy/systemd, with the paths of this host. Nothing is started: the commands for that are shown.
"""

import difflib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smcp_computer.config.file import load_config, parse_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.secret_store import SecretsError, SecretStore, is_sealed, unseal_file, write_private
from smcp_computer.control_commands import Json, Name, Office, RunningComputer, find, plain, print_json
from smcp_computer.settings import ComputerSettings, state_path
from smcp_proto.member_names import check_name
from smcp_service.files import replace_files
from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError, did_you_mean, load_settings

if TYPE_CHECKING:
    from smcp_computer.pins import Entries

UNIT: Final = "smcp-computer.service"
ETC: Final = Path("/etc/smcp")
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_USED: Final = "a running Computer uses it after: smcp-computer servers restart SERVER"

app = typer.Typer()
secrets = typer.Typer(
    no_args_is_help=True, help="Keep values of inputs encrypted on this host, and encrypt whole configurations."
)
app.add_typer(secrets, name="secrets")


@app.command()
def pin(
    which: Annotated[list[str] | None, typer.Argument(metavar="[SERVER[/TOOL]]", help="Only these")] = None,
    update: Annotated[bool, typer.Option("--update", help="Approve what changed, too")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only show differences from the pins; exit with 1 if there are any")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking")] = False,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Record the tools of MCP servers in a file. One that changes is not called until `pin --update` approves it."""
    from smcp_computer.pins import read_pins, readable_json  # noqa: PLC0415 -- it takes a second to load

    computer = find(office, name)
    said = computer.ask("GET", "pins")
    file, now, not_ready = Path(said["file"]), said["servers"], said["not_ready"]
    before = read_pins(file)
    chosen = _choices(which or (), now, not_ready, before, only_pinned=check)
    every = merged(before, now, chosen)
    after = every if update or check else merged(before, now, [each for each in chosen if each[0] not in before])
    difference = list(_difference(before, after))
    if not as_json and (difference or before == every):
        typer.echo("\n".join(difference or ["All tools match their pins."]))
    not_ready = [] if which else [server for server in not_ready if server in before or not check]
    for server in not_ready:
        typer.echo(plain(f"{server} is not ready, and was left out: `smcp-computer status` says why"), err=True)
    if changed := [server for server in every if after.get(server) != every[server]]:
        typer.echo(
            plain(f"differs from its pins: {', '.join(changed)}; `smcp-computer pin --update` approves it"), err=True
        )
    is_written = before != after and not check
    if is_written:
        if not yes:
            typer.confirm(f"Write {file}?", abort=True, err=True)
        try:
            file.touch(0o644)  # it holds no secrets, and the Computer may run as another user than this command
            replace_files({file: f"{readable_json({'version': 1, 'servers': after})}\n".encode()}, keep_access=True)
        except OSError as error:
            raise Failure(f"{file}: cannot be written: {error.strerror}") from None
        computer.ask("POST", "servers", next(iter(now)), "reload")
    if as_json:
        print_json({"file": str(file), "difference": difference, "written": is_written})
    elif is_written:
        typer.echo(f"Wrote {file}")
    if check and (before != every or not_ready):
        raise typer.Exit(1)


def merged(before: "Entries", now: "Entries", chosen: Sequence[tuple[str, str | None]]) -> "Entries":
    """The pins, where those of the chosen servers and tools are as the servers list them now. Pure."""
    after = {server: {**tools} for server, tools in before.items()}
    for server, tool in chosen:
        if tool is None:
            after[server] = {**now[server]}
        elif tool in now[server]:
            after.setdefault(server, {})[tool] = now[server][tool]
        else:
            after[server].pop(tool)
    return after


def _chosen(given: str, now: "Entries", not_ready: Sequence[str], before: "Entries") -> tuple[str, str | None]:
    """The server, and the tool if one is named. Raises Failure: there is none."""
    server, slash, tool = (given, "", "") if given in (*now, *not_ready) else given.partition("/")
    if server not in now:
        why = ": `smcp-computer status` says why" if server in not_ready else did_you_mean(server, [*now, *not_ready])
        raise Failure(f"no MCP server {server!r} is ready here{why}")
    if slash and tool not in now[server] and tool not in before.get(server, {}):
        raise Failure(f"the MCP server {server!r} has no tool {tool!r}{did_you_mean(tool, now[server])}")
    return server, tool if slash else None


def _choices(
    which: Sequence[str], now: "Entries", not_ready: Sequence[str], before: "Entries", *, only_pinned: bool
) -> list[tuple[str, str | None]]:
    """What is named, or else every server that is ready; of them only those in the file, if `only_pinned`.

    Raises Failure: there is none of a name, or it is not in the file.
    """
    chosen = [_chosen(each, now, not_ready, before) for each in which or now]
    for server, _ in chosen:
        if which and only_pinned and server not in before:
            raise Failure(f"{plain(server)} is not pinned: `smcp-computer pin {plain(server)}` does that")
    return [each for each in chosen if each[0] in before or not only_pinned]


def _difference(before: "Entries", after: "Entries") -> Iterator[str]:
    """As `diff -u` shows it, tool by tool."""
    from smcp_computer.pins import readable_json  # noqa: PLC0415 -- as above

    known = {(server, tool) for entries in (before, after) for server, tools in entries.items() for tool in tools}
    for server, tool in sorted(known):
        old, new = (readable_json(each.get(server, {}).get(tool)).splitlines() for each in (before, after))
        where = plain(f"{server}/{tool}")
        yield from difflib.unified_diff(old, new, f"{where} (pinned)", f"{where} (now)", lineterm="")


def store_of(settings: ComputerSettings) -> SecretStore:
    return SecretStore(state_path(settings), settings.secret_key_file)


def _settings(office: str | None, name: str | None) -> ComputerSettings:
    """Those of the Computer that is meant: of the one that runs and fits, where office or name is not said."""
    if not ((office or "SMCP_OFFICE" in os.environ) and (name or "SMCP_NAME" in os.environ)):
        with suppress(Failure):  # what is missing is said below
            here = find(office, name)
            office, name = here.office, here.name
    # which file it has does not matter here
    return load_settings(ComputerSettings, config=Path(), office=office, name=name)


def kept_secrets(office: str | None, name: str | None) -> SecretStore:
    return store_of(_settings(office, name))


@secrets.command("set")
def set_value(
    input_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the input")],
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Keep the value of an input; it is asked for, or read from standard input.

    There is no option for it: others could see it in `ps`.
    """
    settings = _settings(office, name)
    if sys.stdin.isatty():
        value = str(typer.prompt(f"The value of {input_id!r} (not shown)", hide_input=True, err=True))
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise Failure("nothing is kept: the value is empty")
    _done(store_of(settings).put, input_id, value)
    computer = RunningComputer(state_path(settings), settings.office, settings.name)
    with suppress(Failure):  # it does not run
        known = [each["id"] for each in computer.ask("GET", "inputs")["inputs"]]
        if input_id not in known:
            typer.echo(
                f"warning: no input of the Computer has the id {input_id!r}{did_you_mean(input_id, known)}", err=True
            )
    _report("kept", input_id, f"kept {input_id!r}; {_USED}", as_json)


@secrets.command("list")
def list_names(office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """Print the ids of the inputs whose values are kept; the values are never shown."""
    names = sorted(_done(kept_secrets(office, name).read))
    if as_json:
        print_json(names)
    else:
        typer.echo("\n".join(names) or "No secrets.", err=not names)


@secrets.command("rm")
def remove(
    input_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of the inputs")],
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Forget values."""
    store = kept_secrets(office, name)
    missing = [each for each in input_ids if not _done(store.remove, each)]
    if missing:
        raise Failure(f"no value is kept for {', '.join(map(repr, missing))}")
    _report("removed", input_ids, f"the values of {', '.join(map(repr, input_ids))} are removed", as_json)


@secrets.command()
def encrypt(
    file: Annotated[Path, typer.Argument(help="A configuration file; it is replaced")],
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Encrypt a whole configuration file. The commands read it as before."""
    vault = kept_secrets(office, name).vault
    raw = _content(file)
    if is_sealed(raw):
        raise Failure(f"{file} is encrypted already")
    try:
        parse_config(raw)
    except ConfigError as error:
        raise SettingsError(f"{file} is not encrypted, since it has mistakes: {error}") from None
    _done(write_private, file, _done(vault.seal_file, raw))
    _report("encrypted", str(file), f"{file} is encrypted", as_json)


@secrets.command()
def decrypt(
    file: Annotated[Path, typer.Argument(help="An encrypted configuration file; it is replaced")], as_json: Json = False
) -> None:
    """Write a configuration file as plain text again, to change it."""
    raw = _content(file)
    if not is_sealed(raw):
        raise Failure(f"{file} is not encrypted")
    _done(write_private, file, _done(unseal_file, raw))
    _report("decrypted", str(file), f"{file} is plain text again, which its user alone can read", as_json)


def _report(what: str, changed: str | list[str], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json({what: changed})
    else:
        typer.echo(plain(sentence), err=True)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from None


def _done(action: Any, *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except SecretsError as error:
        raise Failure(str(error)) from None


@dataclass(frozen=True)
class _File:
    path: Path
    text: str
    mode: int
    keep: bool
    """One that is there already is left as it is: somebody may have changed it."""


@app.command()
def install(
    config: Annotated[Path, typer.Option(help="The JSON file with the MCP servers; it is copied")],
    office: Annotated[str, typer.Option(help="The office to join")],
    name: Annotated[str, typer.Option(help="This Computer's name there")],
    gateway: Annotated[str | None, typer.Option(help="Where a gateway listens; or say --nats")] = None,
    nats: Annotated[str | None, typer.Option(help="Where NATS is")] = None,
    user: Annotated[str, typer.Option(help="The user that it runs as")] = "smcp",
    write: Annotated[bool, typer.Option("--write", help="Write the files, and do not just show them")] = False,
    root: Annotated[Path, typer.Option(help="Write below this directory, as for an image")] = Path("/"),
    as_json: Json = False,
) -> None:
    """Show the hardened unit of systemd for this Computer and its files; --write writes them."""
    if (gateway is None) == (nats is None):
        raise typer.BadParameter("say either --gateway or --nats", param_hint="--gateway")
    _check_install(config, office, name, gateway, user)
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


def _check_install(config: Path, office: str, name: str, gateway: str | None, user: str) -> None:
    """Raises SettingsError with all that would keep the service from running: systemd does not start it again then."""
    from smcp_agent.connecting.addresses import checked_url  # noqa: PLC0415 -- Socket.IO takes half a second to load
    from smcp_agent.errors import Malformed  # noqa: PLC0415

    problems = []
    for option, said in (("office", office), ("name", name)):
        try:
            check_name(said)
        except ValueError as error:
            problems.append(f"--{option}: {error}")
    for url in (gateway or "").split(",") if gateway is not None else ():
        try:
            checked_url(url.strip())
        except Malformed as error:
            problems.append(f"--gateway: {error.message.removeprefix('url: ')}")
    if not _USER.fullmatch(user):
        problems.append(f"--user: {user!r} is no name of a user of Linux")
    warnings: list[str] = []
    try:
        load_config(config)
    except ConfigError as error:
        problems += [f"--config: {problem}" for problem in error.problems]
        warnings += [f"--config: {warning}" for warning in error.warnings]
    if problems:
        raise SettingsError(*problems, warnings=warnings)


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
