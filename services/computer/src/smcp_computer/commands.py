"""The commands of `smcp-computer` that ask a running Computer, and those that change its configuration file.

They talk to `control` over its socket and know nothing of MCP. A change of the file works without a Computer, too.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smcp_computer.control_client import LOGS, RunningComputer, find, running, seat_directory
from smcp_service.lifecycle import Failure, counted

POLL_S: Final = 0.25
"""How often `logs -f` looks at the file: nobody reads faster."""
CALL_GRACE_S: Final = 5.0
"""A Computer ends a call at its time; the answer may take so much longer."""
COLOURS: Final = {
    "ready": "green", "starting": "yellow", "degraded": "yellow", "backoff": "yellow", "failed": "red",
}  # fmt: skip
BYTES_PER_MB: Final = 1_000_000

app = typer.Typer()
servers = typer.Typer(no_args_is_help=True, help="Add, change, stop and restart MCP servers while the Computer runs.")
app.add_typer(servers, name="servers")


def _known_servers(context: typer.Context) -> list[str]:
    """For the completion of a shell, which shows no errors."""
    try:
        return [each["name"] for each in _find(context.params).ask("GET", "status")["servers"]]
    except Failure:
        return []


Office = Annotated[str | None, typer.Option(help="The Computer's office, where several run here [SMCP_OFFICE]")]
Name = Annotated[str | None, typer.Option(help="The Computer's name, where several run here [SMCP_NAME]")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs")]
Server = Annotated[
    str, typer.Argument(metavar="SERVER", help="An MCP server's name in the file", autocompletion=_known_servers)
]
Config = Annotated[
    Path | None,
    typer.Option(help="The file to change, if not the Computer's [SMCP_CONFIG]", envvar="SMCP_CONFIG"),
]
Rewrite = Annotated[bool, typer.Option("--rewrite", help="Change a file with comments, too; they are removed")]


@app.command()
def status(office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """How the running Computer and its MCP servers are."""
    _show_status(find(office, name).ask("GET", "status"), as_json)


@app.command()
def tools(office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """The tools as Agents see them."""
    said = find(office, name).ask("GET", "tools")
    rows = [(each["name"], each["server"], each["description"]) for each in said["tools"]]
    _print(said, as_json, ("Tool", "Server", "Description"), rows, "No tools: `smcp-computer status` says why.")


@app.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="As `tools` lists it")],
    params: Annotated[str, typer.Option(metavar="JSON", help="Its parameters, a JSON object")] = "{}",
    timeout: Annotated[int, typer.Option(min=1, max=3600, metavar="SECONDS", help="How long it may take")] = 60,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Call a tool as an Agent does: it is confirmed, and stands in the history. ctrl-C cancels it."""
    try:
        parsed = json.loads(params)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="--params") from None
    asked = {"tool_name": tool, "params": parsed, "timeout": timeout}
    result = find(office, name).ask("POST", "call", body=asked, timeout=timeout + CALL_GRACE_S)
    if as_json:
        _print_json(result)
    for block in () if as_json else result["content"]:
        typer.echo(_plain(block["text"]) if block.get("type") == "text" else f"[{block.get('type')}, not shown]")
    if result.get("isError"):
        raise typer.Exit(1)


@app.command()
def history(
    server: Annotated[str | None, typer.Argument(metavar="[SERVER]", help="Only calls of this MCP server")] = None,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """The recent calls of tools, and those that run."""
    said = find(office, name).ask("GET", "history")
    found = {each: calls for each, calls in said["servers"].items() if server in (None, each)}
    rows = [
        (_when(call["at"]), of, call["tool"], call["agent"], call["outcome"], f"{call['ms']:.0f} ms", call["why"])
        for of, calls in found.items()
        for call in calls
    ]
    columns = ("At", "Server", "Tool", "Agent", "Outcome", "Took", "Why")
    _print({"servers": found}, as_json, columns, sorted(rows), "No calls yet.")


@app.command()
def inputs(office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """The inputs of the configuration, and where their values come from; no value is shown."""
    said = find(office, name).ask("GET", "inputs")
    rows = [
        (each["id"], each["source"] or "nowhere: it has no value", ", ".join(each["servers"]), each["description"])
        for each in said["inputs"]
    ]
    _print(said, as_json, ("Input", "Value from", "For", "Description"), rows, "No inputs.")


@app.command()
def logs(
    server: Server,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows, until ctrl-C")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines")] = 100,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """What an MCP server writes to its standard error, and why it ended; also of a Computer that does not run."""
    from smcp_computer.mcp.server_log import log_file  # noqa: PLC0415 -- it takes a second to load

    path = log_file(_state_directory(office, name) / LOGS, server)
    if not path.exists():
        raise Failure(f"there is no log of an MCP server {server!r}: {path} does not exist")
    for line in _log_lines(path, lines, follow=follow):
        typer.echo(json.dumps({"server": server, "line": line}, ensure_ascii=False) if as_json else _plain(line))


@app.command()
def reload(office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """Read the configuration file again now; a running Computer does so by itself when it changes."""
    _show_status(find(office, name).ask("POST", "reload"), as_json)


@servers.command("add")
def add(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND [ARGUMENT]...]", help="The program that is the server")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Or where it listens, over HTTP")] = None,
    sse: Annotated[bool, typer.Option("--sse", help="With --url: by MCP's older transport, SSE")] = False,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="With --url; repeatable")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="With a command; repeatable")] = None,
    cwd: Annotated[str | None, typer.Option(help="With a command: the directory that it runs in")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="In place of one of that name")] = False,
    rewrite: Rewrite = False,
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
    parameters: dict[str, Any]
    if url is None:
        assert command
        parameters = {"command": command[0], "args": command[1:], "env": _pairs("--env", env), "cwd": cwd}
        kind = "stdio"
    else:
        parameters, kind = {"url": url, "headers": _pairs("--header", header)}, "sse" if sse else "streamable"
    body = {"type": kind, "server_parameters": {key: value for key, value in parameters.items() if value}}
    edit = {"action": "add", "name": server, "server": body, "replace": replace, "rewrite": rewrite}
    _edit(edit, config, office, name, as_json)


def _edits(action: str, what: str) -> None:
    """Define the command of that name."""

    @servers.command(action, help=what)
    def change(
        server: Server,
        rewrite: Rewrite = False,
        config: Config = None,
        office: Office = None,
        name: Name = None,
        as_json: Json = False,
    ) -> None:
        edit = {"action": "remove" if action == "rm" else action, "name": server, "rewrite": rewrite}
        _edit(edit, config, office, name, as_json)


_edits("rm", "Take an MCP server out of the file, and end it.")
_edits("enable", "Let an MCP server run that the file disables.")
_edits("disable", "End an MCP server; it stays in the file.")


@servers.command()
def restart(server: Server, office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """End an MCP server and start it again. Calls that run there have some seconds to end."""
    _show_status(find(office, name).ask("POST", "servers", server, "restart"), as_json)


def _edit(edit: Mapping[str, Any], config: Path | None, office: str | None, name: str | None, as_json: bool) -> None:
    if config is None:
        if not running() and not office and not name:
            raise Failure("no Computer of this user runs here: --config says which file to change")
        _show_status(find(office, name).ask("POST", "edit", body=edit), as_json)
        return
    computers = [find(office, name)] if office or name else running()
    for each in computers:
        if Path(each.ask("GET", "status")["config"]).resolve() == config.resolve():
            _show_status(each.ask("POST", "edit", body=edit), as_json)
            return
    from smcp_computer.config.edit import Edit, edit_file  # noqa: PLC0415 -- as above
    from smcp_computer.config.lint import ConfigError  # noqa: PLC0415

    try:
        edit_file(config, Edit.model_validate(edit))
    except ConfigError as error:
        raise Failure("\n".join(error.problems)) from None
    if as_json:
        _print_json({"config": str(config)})
    else:
        which = "that runs here reads it" if computers else "of this user runs here"
        typer.echo(f"{config} is changed; no Computer {which}")


def _find(given: Mapping[str, Any]) -> RunningComputer:
    return find(given.get("office"), given.get("name"))


def _state_directory(office: str | None, name: str | None) -> Path:
    try:
        return find(office, name).directory
    except Failure:
        office, name = office or os.environ.get("SMCP_OFFICE"), name or os.environ.get("SMCP_NAME")
        if given := os.environ.get("SMCP_STATE_DIR"):
            return Path(given)
        if office is None or name is None:
            raise
        return seat_directory(office, name)


def _log_lines(path: Path, last: int, *, follow: bool) -> Iterator[str]:
    """The last lines, and then what is added. A file that was replaced, since it was full, is read from its start."""
    file = path.open(encoding="utf-8", errors="replace")
    try:
        yield from (line.rstrip("\n") for line in file.readlines()[-last:] if last)
        while follow:
            while line := file.readline():
                yield line.rstrip("\n")
            time.sleep(POLL_S)
            if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
    finally:
        file.close()


def _show_status(said: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(said)
        return
    state = "ready" if said["ready"] else "not ready"
    calls = counted(said["calls"], "call")
    typer.echo(_plain(f"{said['name']} in {said['office']}: {state}, {calls} running, process {said['pid']}"))
    for what, why in said["problems"].items():
        _warn(f"{what}: {why}")
    if said["config_problem"]:
        _warn(f"{said['config']} is invalid, the previous one stays in use: {said['config_problem']}")
    rows = [
        (
            each["name"],
            each["state"],
            _when(each["since"]),
            str(each["restarts"]),
            str(each["tools"]),
            str(each["calls"]),
            "" if each["pid"] is None else str(each["pid"]),
            "" if each["cpu_s"] is None else f"{each['cpu_s']:.1f} s",
            "" if each["memory_bytes"] is None else f"{each['memory_bytes'] / BYTES_PER_MB:.0f} MB",
            each["reason"],
        )
        for each in said["servers"]
    ]
    columns = ("Server", "State", "Since", "Restarts", "Tools", "Calls", "PID", "CPU", "Memory", "Reason")
    _print(said, False, columns, rows, "No MCP servers: `smcp-computer servers add` adds one.")
    for each in said["servers"]:
        for warning in each["warnings"]:
            _warn(f"{each['name']}: {warning}")


def _print(said: object, as_json: bool, columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    found = list(rows)
    if as_json:
        _print_json(said)
        return
    if not found:
        typer.echo(empty, err=True)
        return
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=not number)
    for row in found:
        cells = [escape(_plain(cell)) for cell in row]
        table.add_row(*(f"[{COLOURS[cell]}]{cell}[/]" if cell in COLOURS else cell for cell in cells))
    console = Console()
    if not sys.stdout.isatty():
        console.width = max(console.width, 200)  # a pipe has no edge
    console.print(table)


def _warn(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[yellow]{escape(_plain(text))}[/yellow]", highlight=False)


def _print_json(said: object) -> None:
    typer.echo(json.dumps(said, indent=2, ensure_ascii=False))


def _plain(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(each if each.isprintable() or each in "\n\t" else "�" for each in text)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    split = [each.partition("=") for each in given or ()]
    if not all(equals for _, equals, _ in split):
        raise typer.BadParameter("is not of the form NAME=VALUE", param_hint=option)
    return {name: value for name, _, value in split}
