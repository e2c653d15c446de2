"""The commands `smcp-computer servers …`, and the changes of a configuration file that they make.

The result of an edit is checked before it is written, and a file is replaced as a whole. A running Computer takes it
over: see `file_changes`. A change of the file works without a Computer, too.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from smcp_computer.config.file import content_of, parse_config, read_object
from smcp_computer.config.inputs import variable_of
from smcp_computer.config.lint import ConfigError, placed
from smcp_computer.config.other_mcp_hosts import ENABLED_KEYS, servers_of
from smcp_computer.config.secret_store import is_sealed
from smcp_computer.control_commands import (
    Json,
    Name,
    Office,
    Said,
    Server,
    find,
    print_answer,
    print_status,
    print_warnings,
    running,
)
from smcp_proto.jsonc import has_comments
from smcp_service.files import locked, replace_files
from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError, did_you_mean

app = typer.Typer(no_args_is_help=True, help="Add, change, stop and restart MCP servers while the Computer runs.")

Config = Annotated[
    Path | None,
    typer.Option(help="The file to change, if not the Computer's [SMCP_CONFIG]", envvar="SMCP_CONFIG"),
]


class NoChange(ConfigError):
    """There is no such server, or there is one of that name already."""


Action = Literal["add", "remove", "enable", "disable"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change."""

    action: Action
    name: str
    server: Mapping[str, Any] | None = None
    """What is added, in any form that the file may have."""
    replace: bool = False
    """Add it in place of one of that name."""


def edit_file(path: Path, edit: Edit) -> list[str]:
    """Returns warnings about the server that is added or enabled.

    Raises ConfigError: the file cannot be read or written, is not valid, or is not valid any more with the change;
    it holds comments; there is no such server, or there is one already. The file is as before then."""
    notes: list[str] = []
    try:
        document = _rewritten(path, lambda raw: edited(raw, edit, notes), may_be_new=edit.action == "add")
    except ConfigError as error:
        raise type(error)(*(f"{path}: {problem}" for problem in error.problems)) from None
    config = parse_config(json.dumps(document))
    if edit.name not in config.servers:
        return []
    own = config.places[edit.name].field()
    return [*notes, *(each for each in config.warnings if each.startswith(f"{own}."))]


def write_new(path: Path, document: Mapping[str, Any]) -> None:
    """Write a configuration that its user alone can read, as it may hold secrets. Raises ConfigError: it cannot be
    written, or there is a file already."""
    if path.exists():
        raise ConfigError("is there already: write the result to another file, and move its servers by hand")
    try:
        replace_files({path: _text(document)})
    except OSError as error:
        raise _not_writable(path, error) from None


def edited(raw: bytes | str, edit: Edit, notes: list[str]) -> dict[str, Any]:
    """What the file holds with the change; an empty one is one without servers. Raises ConfigError. Pure.

    `notes` tell what was added beside the server."""
    document = read_object(raw) if raw.strip() else {"servers": {}}
    if has_comments(raw.decode(errors="replace") if isinstance(raw, bytes) else raw):
        raise ConfigError("has comments, which would get lost: change it by hand")
    above, _, _ = servers_of(document)
    _change(document[above] if above else document or document.setdefault("servers", {}), edit)
    _add_inputs(document, edit, notes)
    return document


def _add_inputs(document: dict[str, Any], edit: Edit, notes: list[str]) -> None:
    """Add an input for each `${input:ID}` of an added server that is the id of none."""
    known = parse_config(json.dumps(document)).inputs
    wanted = dict.fromkeys(each.name for _, each in placed(edit.server, "") if each.kind == "input")
    about = {"type": "promptString", "description": f"for the MCP server {edit.name}", "password": True}
    for each in (each for each in wanted if each not in known):
        document["inputs"] = [*(document.get("inputs") or ()), {"id": each, **about}]
        how = f"`smcp-computer secrets set {shlex.quote(each)}` or {variable_of(each)} gives its value"
        notes.append(f"inputs: {each!r} was added{did_you_mean(each, known)}; {how}")


def _change(servers: dict[str, Any], edit: Edit) -> None:
    there = [name for name, body in servers.items() if isinstance(body, dict)]
    if edit.action == "add":
        if edit.name in there and not edit.replace:
            raise NoChange(f"there is a server {edit.name!r} already: --replace puts this one in its place")
        servers[edit.name] = edit.server
        return
    if edit.name not in there:
        raise NoChange(f"there is no server {edit.name!r}{did_you_mean(edit.name, there)}")
    if edit.action == "remove":
        del servers[edit.name]
    elif edit.action == "disable":
        servers[edit.name]["disabled"] = True
    else:
        for key in ("disabled", *ENABLED_KEYS):
            servers[edit.name].pop(key, None)


def _rewritten(path: Path, change: Callable[[bytes], Mapping[str, Any]], *, may_be_new: bool) -> Mapping[str, Any]:
    """Replace the file by what `change` makes of its content, while other commands wait, and return that.

    Whoever reads the file meanwhile sees the old or the new one, never a mix. A new one can be read by its user alone,
    as it may hold secrets. Raises ConfigError, also where a file is encrypted, and would not be any more.
    """
    path = path.resolve()
    try:
        with locked(path.parent):
            is_new = may_be_new and not path.exists()
            document = change(b"" if is_new else content_of(path))
            if not is_new and is_sealed(path.read_bytes()):
                raise ConfigError("is encrypted: decrypt it with `smcp-computer secrets decrypt`, then change it")
            replace_files({path: _text(document)}, keep_access=True)
    except OSError as error:
        raise _not_writable(path, error) from None
    return document


def _text(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _not_writable(path: Path, error: OSError) -> ConfigError:
    why = f"cannot be written in {path.parent}: {error.strerror or type(error).__name__}"
    hint = "a Computer that may only read its configuration, as under systemd, leaves the change to you"
    return ConfigError(f"{why}; {hint}")


@app.command("add")
def add(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="The name of the MCP server")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND [ARGUMENT]...]", help="The program that is the server")
    ] = None,
    url: Annotated[str | None, typer.Option(help="The URL of an MCP server over HTTP, in place of a command")] = None,
    sse: Annotated[bool, typer.Option("--sse", help="With --url: the server uses MCP's older transport, SSE")] = False,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="With --url: a header of each request; repeatable")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With a command: a variable of its environment; repeatable"),
    ] = None,
    cwd: Annotated[str | None, typer.Option(help="With a command: its working directory")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a server of that name")] = False,
    config: Config = None,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Add an MCP server to the file, and start it: `servers add time -- uvx mcp-server-time`.

    Values may hold ${input:ID} and ${env:NAME}, in single quotes.
    """
    if (url is None) == (not command):
        raise typer.BadParameter("say either a command, behind --, or --url", param_hint="SERVER")
    if command and command[0].startswith(("http://", "https://")):
        raise typer.BadParameter("is a URL: did you mean --url?", param_hint="COMMAND")
    parameters: dict[str, Any]
    if url is None:
        assert command
        parameters = {"command": command[0], "args": command[1:], "env": _pairs("--env", env), "cwd": cwd}
        kind = "stdio"
    else:
        parameters, kind = {"url": url, "headers": _pairs("--header", header)}, "sse" if sse else "streamable"
    body = {"type": kind, "server_parameters": {key: value for key, value in parameters.items() if value}}
    _edit("add", server, config, office, name, as_json, server=body, replace=replace)


def _edits(command: str, action: Action, what: str) -> None:
    """Define a command."""

    @app.command(command, help=what)
    def change(
        server: Server,
        config: Config = None,
        office: Office = None,
        name: Name = None,
        as_json: Json = False,
    ) -> None:
        _edit(action, server, config, office, name, as_json)


_edits("rm", "remove", "Take an MCP server out of the file, and end it.")
_edits("enable", "enable", "Let an MCP server run that the file disables.")
_edits("disable", "disable", "End an MCP server; it stays in the file.")


@app.command()
def restart(server: Server, office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """End an MCP server and start it again. Calls that run there have some seconds to end."""
    _print_outcome(find(office, name).ask("POST", "servers", server, "restart"), server, as_json)


def _edit(
    action: Action, which: str, config: Path | None, office: str | None, name: str | None, as_json: bool, **more: Any
) -> None:
    """Change the file, by default that of the running Computer; a Computer that runs with it takes it over."""
    if config is None and not running() and not office and not name:
        raise Failure("no Computer of this user runs here: --config says which file to change")
    here = [find(office, name)] if config is None or office or name else running()
    files = {each: Path(each.ask("GET", "status")["config"]) for each in here}
    config = config or files[here[0]]
    try:
        warnings = edit_file(config, Edit(action, which, **more))
    except ConfigError as error:
        if isinstance(error, NoChange):
            raise Failure(str(error)) from None
        raise SettingsError(*error.problems, warnings=error.warnings) from None
    for computer, file in files.items():
        if file.resolve() == config.resolve():
            said = computer.ask("POST", "servers", which, "reload")
            _print_outcome({**said, "warnings": warnings}, which, as_json)
            return
    nobody = "that runs here reads it" if here else "of this user runs here"

    def show(said: Said) -> None:
        typer.echo(f"{config} is changed; no Computer {nobody}")
        print_warnings(said)

    print_answer({"config": str(config), "warnings": warnings}, as_json, show)


def _print_outcome(said: Said, server: str, as_json: bool) -> None:
    """Raises Failure: the Computer does not take the file, or the server does not run."""
    print_answer(said, as_json, print_status)
    if said["config_problem"]:
        raise Failure("the Computer keeps its previous configuration")
    for each in said["servers"]:
        if each["name"] == server and each["state"] in ("failed", "backoff"):
            raise Failure(f"the MCP server {server!r} does not run ({each['state']}): {each['reason']}")


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    split = [each.partition("=") for each in given or ()]
    if not all(equals for _, equals, _ in split):
        raise typer.BadParameter("is not of the form NAME=VALUE", param_hint=option)
    return {name: value for name, _, value in split}
