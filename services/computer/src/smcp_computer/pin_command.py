"""The command `smcp-computer pin`: records the tools of a running Computer's MCP servers, or approves their changes.

The Computer says what the servers list now (`control`). The command shows the difference to the file and writes it;
`pins` enforces the file.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smcp_computer.control_commands import Json, Name, Office, find, plain, print_json
from smcp_service.files import replace_files
from smcp_service.lifecycle import Failure
from smcp_service.settings import did_you_mean

if TYPE_CHECKING:
    from smcp_computer.pins import Entries

app = typer.Typer()


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
            text = f"{readable_json({'version': 1, 'servers': after})}\n"
            # it holds no secrets, and the Computer may run as another user than this command
            replace_files({file: text.encode()}, keep_access=True, mode=0o644)
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
    """The pins `before`, with the chosen servers and tools replaced by what the servers list `now`. Pure."""
    after = {server: {**tools} for server, tools in before.items()}
    for server, tool in chosen:
        if tool is None:
            after[server] = {**now[server]}
        elif tool in now[server]:
            after.setdefault(server, {})[tool] = now[server][tool]
        else:
            after[server].pop(tool)
    return after


def _server_and_tool(given: str, now: "Entries", not_ready: Sequence[str], before: "Entries") -> tuple[str, str | None]:
    """The server, and the tool if one is named. Raises Failure: there is no such server or tool."""
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
    """The named servers and tools, or every ready server if none is named; with `only_pinned` those in the file alone.

    Raises Failure: there is no such server or tool, or it is not in the file.
    """
    chosen = [_server_and_tool(each, now, not_ready, before) for each in which or now]
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
