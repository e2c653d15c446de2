"""The commands that change files of a Computer: `smcp-computer servers …`, `secrets …` and `pin`.

The result of an edit is checked before it is written, and a file is replaced as a whole. A running Computer takes it
over: see `file_changes`.
"""

import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smcp_computer.config.file import content_of, parse_config, read_object
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.other_mcp_hosts import ENABLED_KEYS, servers_of
from smcp_computer.config.secret_store import SecretStore, is_sealed, seal_file, unseal_file, write_private
from smcp_computer.control_commands import Json, Name, NoneRuns, Office, Said, Server, find, print_json, print_status
from smcp_computer.settings import ComputerSettings, state_path
from smcp_proto.jsonc import has_comments
from smcp_proto.printable import did_you_mean, plain
from smcp_service.files import locked, replace_files
from smcp_service.lifecycle import Failure
from smcp_service.settings import load_settings

servers_app = typer.Typer(no_args_is_help=True, help="Add, change, stop and restart MCP servers of a running Computer.")
secrets_app = typer.Typer(
    no_args_is_help=True, help="Keep values of inputs encrypted on this host, and encrypt whole configurations."
)

Action = Literal["add", "replace", "remove", "enable", "disable"]


def edit_file(path: Path, action: Action, name: str, server: Mapping[str, Any] | None = None) -> list[str]:
    """Change one server of a file. Returns warnings about the server that is added or enabled.

    Readers see the old or the new file, never a mix. `server` is what is added, in any form that the file may have.

    Raises, and writes nothing: ConfigError (the file cannot be read or written, is not valid before or after the
    change, or holds comments); Failure (there is no such server, or there is one already; the file is encrypted)."""
    file = path.resolve()
    try:
        with locked(file.parent):
            if is_sealed(file.read_bytes()):
                raise Failure(f"{path}: is encrypted: decrypt it with `smcp-computer secrets decrypt`, then change it")
            document = edited(content_of(file), action, name, server)
            config = parse_config(json.dumps(document))
            replace_files({file: _text(document)}, keep_access=True)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(f"cannot be written in {file.parent}: {why}").at(path) from None
    except ConfigError as error:
        raise error.at(path) from None
    if name not in config.servers:
        return []
    own = config.places[name].field()
    return [each for each in config.warnings if each.startswith(f"{own}.")]


def write_new(path: Path, document: Mapping[str, Any]) -> None:
    """Write a configuration that its user alone can read, as it may hold secrets. Raises ConfigError: it cannot be
    written, or there is a file already."""
    if path.exists():
        raise ConfigError("is there already: write the result to another file, and move its servers by hand").at(path)
    write_private(path, _text(document))


def edited(raw: bytes | str, action: Action, name: str, server: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the file holds with the change. See `edit_file`. Pure."""
    document = read_object(raw)
    if has_comments(raw.decode(errors="replace") if isinstance(raw, bytes) else raw):
        raise ConfigError("has comments, which would get lost: change it by hand")
    above, _, _ = servers_of(document)
    servers = document[above] if above else document or document.setdefault("servers", {})
    there = [each for each, body in servers.items() if isinstance(body, dict)]
    if action in ("add", "replace"):
        if name in there and action == "add":
            raise Failure(f"there is a server {name!r} already: --replace puts this one in its place")
        servers[name] = server
    elif name not in there:
        raise Failure(f"there is no server {name!r}{did_you_mean(name, there)}")
    elif action == "remove":
        del servers[name]
    elif action == "disable":
        servers[name]["disabled"] = True
    else:
        for key in ("disabled", *ENABLED_KEYS):
            servers[name].pop(key, None)
    return document


def _text(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


@servers_app.command()
def add(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="The name of the MCP server.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND [ARGUMENT]", help="The program that is the server.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="The URL of an MCP server over HTTP, in place of a command.")] = None,
    sse: Annotated[bool, typer.Option("--sse", help="With --url: the server uses MCP's older transport, SSE.")] = False,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="With --url: a header of each request; repeatable.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With a command: a variable of its environment; repeatable."),
    ] = None,
    cwd: Annotated[str | None, typer.Option(help="With a command: its working directory.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a server of that name.")] = False,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Add an MCP server to the file, and start it: `servers add time -- uvx mcp-server-time`.

    Values may hold ${input:ID} and ${env:NAME}, in single quotes.
    """
    parameters: dict[str, Any]
    if command and url is None:
        parameters = {"command": command[0], "args": command[1:], "env": _pairs("--env", env), "cwd": cwd}
        kind = "stdio"
    elif url is not None and not command:
        parameters, kind = {"url": url, "headers": _pairs("--header", header)}, "sse" if sse else "streamable"
    else:
        raise typer.BadParameter("say either a command, behind --, or --url", param_hint="SERVER")
    body = {"type": kind, "server_parameters": {key: value for key, value in parameters.items() if value}}
    _edit("replace" if replace else "add", server, office, name, as_json, body)


def _edits(command: str, action: Action, what: str) -> None:
    @servers_app.command(command, help=what)
    def change(server: Server, office: Office = None, name: Name = None, as_json: Json = False) -> None:
        _edit(action, server, office, name, as_json)


_edits("rm", "remove", "Take an MCP server out of the file, and end it.")
_edits("enable", "enable", "Enable a disabled MCP server.")
_edits("disable", "disable", "Disable an MCP server; it stays in the file.")


@servers_app.command()
def restart(server: Server, office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """End an MCP server and start it again. Running calls get 5 s to finish."""
    _print_outcome(find(office, name).ask("POST", "servers", server, "restart"), server, as_json)


def _edit(
    action: Action, which: str, office: str | None, name: str | None, as_json: bool, body: Said | None = None
) -> None:
    """Change the file of the running Computer, which then says what becomes of the server."""
    computer = find(office, name)
    warnings = edit_file(Path(computer.ask("GET", "status")["config"]), action, which, body)
    said = computer.ask("POST", "servers", which, "reload")
    _print_outcome({**said, "warnings": warnings}, which, as_json)


def _print_outcome(said: Said, server: str, as_json: bool) -> None:
    """Raises Failure: the Computer does not take the file, or the server does not run."""
    own = [each for each in said["servers"] if each["name"] == server]
    if as_json:
        print_json(said)
    else:
        print_status({**said, "servers": own or said["servers"]})
    if said["config_problem"]:
        raise Failure("the Computer keeps its previous configuration")
    for each in own:
        if each["state"] in ("failed", "backoff"):
            raise Failure(f"the MCP server {server!r} does not run ({each['state']}): {each['reason']}")


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    split = [each.partition("=") for each in given or ()]
    if not all(equals for _, equals, _ in split):
        raise typer.BadParameter("is not of the form NAME=VALUE", param_hint=option)
    return {name: value for name, _, value in split}


def pin(
    servers: Annotated[list[str] | None, typer.Argument(metavar="SERVER", help="Only these MCP servers.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Approve what changed, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Record the tools of MCP servers in a file. A tool that changes is not called until `pin --update`."""
    from smcp_computer.pins import read_pins, readable_json  # noqa: PLC0415 -- it takes a second to load

    computer = find(office, name)
    said = computer.ask("GET", "pins")
    file, now = Path(said["file"]), said["servers"]
    before = read_pins(file)
    for server in servers or ():
        if server not in now:
            raise Failure(f"no MCP server {server!r} is ready here{did_you_mean(server, now)}")
    after = {**before, **{server: now[server] for server in servers or now if update or server not in before}}
    difference = list(_difference(before, after))
    if not as_json:
        typer.echo("\n".join(difference or ["Nothing to record; --update approves changes of pinned tools."]))
    if difference:
        if not yes:
            typer.confirm(f"Write {file}?", abort=True, err=True)
        try:
            text = f"{readable_json({'version': 1, 'servers': after})}\n"
            # it holds no secrets, and the Computer may run as another user than this command
            replace_files({file: text.encode()}, keep_access=True, mode=0o644)
        except OSError as error:
            raise Failure(f"{file}: cannot be written: {error.strerror}") from None
        # reads the whole configuration again, with the pins, whichever server it names
        computer.ask("POST", "servers", next(iter(now)), "reload")
    if as_json:
        print_json({"file": str(file), "difference": difference})


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """As `diff -u` shows it, tool by tool."""
    from smcp_computer.pins import readable_json  # noqa: PLC0415 -- as above

    known = {(server, tool) for entries in (before, after) for server, tools in entries.items() for tool in tools}
    for server, tool in sorted(known):
        old, new = (readable_json(each.get(server, {}).get(tool)).splitlines() for each in (before, after))
        where = plain(f"{server}/{tool}")
        yield from difflib.unified_diff(old, new, f"{where} (pinned)", f"{where} (now)", lineterm="")


ConfigFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A configuration file; it is replaced.")]


def _kept_secrets(office: str | None, name: str | None) -> SecretStore:
    """Those of the running Computer that matches, else of the one that the options and the environment name."""
    with suppress(NoneRuns):  # `load_settings` reports what is missing
        here = find(office, name)
        office, name = here.office, here.name
    # its configuration file does not matter here
    settings = load_settings(ComputerSettings, config=Path(), office=office, name=name)
    return SecretStore(state_path(settings), settings.secret_key_file)


@secrets_app.command("set")
def set_value(
    input_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the input.")],
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Keep the value of an input. The command asks for it, or reads it from standard input.

    There is no option for the value: others could see it in `ps`.
    """
    if sys.stdin.isatty():
        value = str(typer.prompt(f"The value of {input_id!r} (not shown)", hide_input=True, err=True))
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise Failure("nothing is kept: the value is empty")
    _kept_secrets(office, name).put(input_id, value)
    with suppress(NoneRuns):
        known = [each["id"] for each in find(office, name).ask("GET", "inputs")["inputs"]]
        if input_id not in known:
            why = f"no input of its configuration has this id; there are: {', '.join(known) or 'none'}"
            typer.echo(plain(f"warning: {why}"), err=True)
    used = "a running Computer uses it after: smcp-computer servers restart SERVER"
    _report("kept", input_id, f"kept {input_id!r}; {used}", as_json)


@secrets_app.command("list")
def list_names(office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """Print the ids of the inputs whose values are kept; the values are never shown."""
    names = sorted(_kept_secrets(office, name).read())
    if as_json:
        print_json(names)
    else:
        typer.echo("\n".join(names) or "No secrets.", err=not names)


@secrets_app.command("rm")
def remove(
    input_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of the inputs.")],
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Forget values."""
    store = _kept_secrets(office, name)
    missing = [each for each in input_ids if not store.remove(each)]
    if missing:
        raise Failure(f"no value is kept for {', '.join(map(repr, missing))}")
    _report("removed", input_ids, f"the values of {', '.join(map(repr, input_ids))} are removed", as_json)


@secrets_app.command()
def encrypt(file: ConfigFile, as_json: Json = False) -> None:
    """Encrypt a whole configuration file. The commands read it as before."""
    raw = file.read_bytes()
    if is_sealed(raw):
        raise Failure(f"{file} is encrypted already")
    write_private(file, seal_file(raw))
    _report("encrypted", str(file), f"{file} is encrypted", as_json)


@secrets_app.command()
def decrypt(file: ConfigFile, as_json: Json = False) -> None:
    """Write a configuration file as plain text again, to change it."""
    raw = file.read_bytes()
    if not is_sealed(raw):
        raise Failure(f"{file} is not encrypted")
    write_private(file, unseal_file(raw))
    _report("decrypted", str(file), f"{file} is plain text again, which its user alone can read", as_json)


def _report(what: str, changed: str | list[str], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json({what: changed})
    else:
        typer.echo(plain(sentence), err=True)
