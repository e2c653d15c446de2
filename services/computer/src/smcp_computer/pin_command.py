"""The command `smcp-computer pin`: records the tools of a running Computer's MCP servers, or approves their changes.

The Computer says what the servers list now (`control`). The command shows the difference to the file and writes it;
`pins` enforces the file.
"""

import difflib
from collections.abc import Iterator
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
    servers: Annotated[list[str] | None, typer.Argument(metavar="[SERVER]...", help="Only these MCP servers")] = None,
    update: Annotated[bool, typer.Option("--update", help="Approve what changed, too")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking")] = False,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Record the tools of MCP servers in a file. One that changes is not called until `pin --update` approves it."""
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
        computer.ask("POST", "servers", next(iter(now)), "reload")
    if as_json:
        print_json({"file": str(file), "difference": difference})


def _difference(before: "Entries", after: "Entries") -> Iterator[str]:
    """As `diff -u` shows it, tool by tool."""
    from smcp_computer.pins import readable_json  # noqa: PLC0415 -- as above

    known = {(server, tool) for entries in (before, after) for server, tools in entries.items() for tool in tools}
    for server, tool in sorted(known):
        old, new = (readable_json(each.get(server, {}).get(tool)).splitlines() for each in (before, after))
        where = plain(f"{server}/{tool}")
        yield from difflib.unified_diff(old, new, f"{where} (pinned)", f"{where} (now)", lineterm="")
