"""What the commands of `smcp-computer` print: tables for people, JSON for programs (`--json`).

Warnings go to standard error. Which command shows what is not known here.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smcp_proto.printable import printable, printable_json
from smcp_service.lifecycle import counted

COLOURS: Final = {
    "ready": "green", "starting": "yellow", "degraded": "yellow", "backoff": "yellow", "failed": "red",
}  # fmt: skip
BYTES_PER_MB: Final = 1_000_000

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs")]
Said = Mapping[str, Any]
"""An answer of `control`."""


def print_answer(said: Said, as_json: bool, show: Callable[[Said], None]) -> None:
    """As JSON, or as `show` prints it for people."""
    if as_json:
        print_json(said)
    else:
        show(said)


def print_json(value: object) -> None:
    typer.echo(printable_json(value))


def print_status(said: Said) -> None:
    state = "ready" if said["ready"] else "not ready"
    calls = counted(said["calls"], "call")
    typer.echo(plain(f"{said['name']} in {said['office']}: {state}, {calls} running, process {said['pid']}"))
    for what, why in said["problems"].items():
        _warn(f"{what}: {why}")
    if said["config_problem"]:
        _warn(f"{said['config']} is invalid, the previous one stays in use: {said['config_problem']}")
    rows = [
        (
            each["name"],
            each["state"],
            when(each["since"]),
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
    print_table(columns, rows, "No MCP servers: `smcp-computer servers add` adds one.")
    for each in said["servers"]:
        for warning in each["warnings"]:
            _warn(f"{each['name']}: {warning}")
    print_warnings(said)


def print_warnings(said: Said) -> None:
    """Those of a change of the file."""
    for warning in said.get("warnings", ()):
        _warn(f"warning: {warning}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """The first column is never broken, since people copy it. Without rows, `empty` says so."""
    if not rows:
        typer.echo(empty, err=True)
        return
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=not number)
    for row in rows:
        cells = [escape(plain(cell)) for cell in row]
        table.add_row(*(f"[{COLOURS[cell]}]{cell}[/]" if cell in COLOURS else cell for cell in cells))
    console = Console()
    if not sys.stdout.isatty():
        console.width = max(console.width, 200)  # a pipe has no edge
    console.print(table)


def _warn(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[yellow]{escape(plain(text))}[/yellow]", highlight=False)


def plain(text: str) -> str:
    """`text` as a terminal may get it."""
    return printable(text, newline="\n")


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
