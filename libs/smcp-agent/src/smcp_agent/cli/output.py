"""The output of the commands: tables and texts for people, JSON for programs; diagnostics go to standard error."""

import json
import re
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from itertools import count, zip_longest
from mimetypes import guess_extension
from pathlib import Path
from typing import Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from smcp_agent import events
from smcp_agent.cli.parameters import json_types
from smcp_agent.errors import BadReply, SmcpError, may_have_run
from smcp_agent.resources import windows
from smcp_agent.results import AudioContent, CallResult, ImageContent, ResourceContents, as_text
from smcp_agent.rpc import JsonObject
from smcp_proto.printable import plain, printable, printable_json, stacked_rows
from smcp_proto.schemas import SessionInfo, SMCPTool, ToolProgress

MAX_ROWS: Final = 200
"""Rows of a table with a border, which takes rich a few milliseconds for each row; more rows are printed stacked."""
BORDER: Final = 3
"""Characters that a column of a table needs for its border and padding."""


def print_json(value: Any) -> None:
    typer.echo(printable_json(value))


def print_sessions(sessions: Sequence[SessionInfo], office: str) -> None:
    ordered = sorted(sessions, key=lambda each: (each.role != "computer", each.name or ""))
    print_table("Name", {"Role": 10}, [(session.name or "", session.role or "") for session in ordered])
    if not any(session.role == "computer" for session in ordered):
        print_hint(f"No Computer is in the office {office!r}: is that its name (--office, SMCP_OFFICE)?")


def print_tools(tools: Sequence[SMCPTool], why: str = "") -> None:
    rows = [(tool.name, parameters(tool.params_schema), tool.description) for tool in tools]
    print_table("Tool", {"Parameters": 20, "Description": 20}, rows, f"No tools: {why}." if why else "No tools.")
    if any("*" in row[1] for row in rows):
        print_hint("* has to be given.")


def print_table(first: str, others: Mapping[str, int], rows: Sequence[Sequence[str]], empty: str = "") -> None:
    """A table whose first column is never cut, since people copy it; `others` are columns and their minimum widths.
    More than `MAX_ROWS` rows, and a terminal that is too narrow, get `stacked_rows`."""
    if not rows and empty:
        print_hint(empty)
        return
    longest = max((cell_len(plain(row[0])) for row in rows), default=0)
    console = Console()
    least = longest + sum(others.values()) + BORDER * (len(others) + 1) + 1
    is_terminal = sys.stdout.isatty()
    if len(rows) > MAX_ROWS or (is_terminal and console.width < least):
        typer.echo(stacked_rows([first, *others], rows, console.width))
        return
    console.width = max(console.width, least, 0 if is_terminal else 200)  # a pipe has no edge
    table = Table()
    table.add_column(first, no_wrap=True, min_width=longest)
    for name in others:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(plain(cell)) for cell in row))
    console.print(table)


def parameters(schema: dict[str, Any]) -> str:
    """The names of a tool's parameters, one a line, with their types; `*` marks those that are required."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else ()
    lines = []
    for name, about in properties.items() if isinstance(properties, dict) else ():
        star = "*" if name in needed else ""
        kind = " or ".join(sorted(json_types(about, schema.get("$defs")), key=lambda each: (each == "null", each)))
        lines.append(f"{name}{star}: {kind}" if kind else f"{name}{star}")
    return "\n".join(lines)


def save_binaries(result: CallResult, directory: Path, tool: str) -> list[str | None]:
    """Write the binary contents of a result into new files named after the tool; the file of each content, None of a
    text. Raises BadReply: a content is not in base64; OSError."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", tool)[:100]  # file systems take 255 bytes
    numbers = count(1)  # continues after the last number, as a result may have thousands of pictures
    files: list[str | None] = []
    for block in result.content:
        data = block.data if isinstance(block, ImageContent | AudioContent) else getattr(block, "blob", None)
        if data is None:
            files.append(None)
            continue
        try:
            binary = b64decode(data, validate=True)
        except ValueError:
            raise BadReply("a binary content of the result is not in base64") from None
        suffix = guess_extension(getattr(block, "mime_type", None) or "") or ".bin"
        for number in numbers:
            path = directory / f"{stem}-{number}{suffix}"
            try:
                with path.open("xb") as file:
                    file.write(binary)
            except FileExistsError:
                continue
            files.append(str(path))
            break
    return files


def print_result(result: CallResult, files: Sequence[str | None] = ()) -> None:
    """`files`: where the binary contents were written."""
    texts = [path or as_text(block) for block, path in zip_longest(result.content, files)]
    if not texts and result.structured_content is not None:
        texts = [printable_json(result.structured_content)]
    for text in texts:
        typer.echo(plain(text))
    if any(text.endswith(", not shown]") for text in texts):
        print_hint("--output DIR writes what is not shown into files.")
    if result.timed_out:
        print_failure("the call timed out")
    elif result.is_error:
        print_failure("the call was cancelled" if result.cancelled else "the call failed")
    if result.input_required:
        print_hint("smcp-agent call cannot answer; an MCP client or a program can (smcp-agent mcp, on_input).")
        print_hint("Or the Computer asks its own user (SMCP_CONFIRM=ask, SMCP_ELICIT=terminal).")
    summary = f"{result.duration_s:.3f} s; smcp trace {result.trace_id}"
    Console(stderr=True, soft_wrap=True).print(f"[dim]{summary}[/dim]", highlight=False)


def print_error(error: SmcpError, *, as_json: bool, hint: str = "", ids: Mapping[str, str] | None = None) -> None:
    """The flat error with the `ids` of a call on standard output for programs, a line on standard error for people."""
    if as_json:
        print_json({**error.body().model_dump(), **(ids or {})})
    ran = " (the tool may have run nevertheless)" if ids and may_have_run(error) else ""
    print_failure(f"error {int(error.code)}: {error.message}{ran}")
    if ids:
        print_hint(f"smcp trace {ids['trace_id']}")
    if hint:
        print_hint(hint)


def print_failure(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[red]{escape(plain(text))}[/red]", highlight=False)


def print_hint(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(escape(plain(text)), highlight=False)


def working(what: str) -> Progress:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    progress.add_task(escape(plain(what)), total=None)
    return progress


def show_progress(shown: Progress, note: ToolProgress) -> None:
    (task,) = shown.tasks
    if note.total is not None and task.total is None:
        shown.columns = (*shown.columns, BarColumn(), TaskProgressColumn())
    words = task.description if note.message is None else escape(plain(note.message))
    shown.update(task.id, description=words, completed=note.progress, total=note.total)


def print_desktop(desktop: JsonObject, only: str | None) -> None:
    shown = windows(desktop)
    for number, window in enumerate(shown):
        if number:
            typer.echo()
        typer.secho(plain(window.uri), bold=True)
        if window.age:
            print_hint(f"Read {window.age:.0f} s ago: its MCP server is slow.")
        if window.text:
            typer.echo(plain(window.text))
    if missing := desktop.get("a2c_missing"):
        print_hint(f"Windows that could not be read: {missing}.")
    elif not shown:
        print_hint("No window to show." if only is None else "No such window: without --window all are shown.")


def print_documents(page: JsonObject, offset: int) -> None:
    shown, total, as_listed = page["documents"], page["total_count"], page.get("a2c_as_listed", 0)
    columns = ("title", "file_type", "page_count", "last_modified")
    rows = [(each["uri"], *(str(each.get(name, "")) for name in columns)) for each in shown]
    print_table("Document", {"Title": 20, "Type": 4, "Pages": 5, "Modified": 20}, rows, "No documents.")
    if len(shown) < total:
        print_hint(f"{len(shown)} of {total}, from {offset} on: --offset and --limit choose others.")
    if as_listed:
        print_hint(f"Documents whose metadata is not known now, and which may be missing: {as_listed}.")


def print_resources(what: str, key: str, listed: Sequence[JsonObject]) -> None:
    """Resources, or templates: `what` names the first column, whose values are under `key`."""
    rows = [
        (each[key], each.get("title") or each["name"], each.get("mimeType", ""), str(each.get("serverId", "")))
        for each in listed
    ]
    print_table(what, {"Name": 20, "Type": 12, "Server": 10}, rows, f"No {what.lower()}s.")


def print_completion(completion: JsonObject) -> None:
    for value in completion["values"]:
        typer.echo(plain(value))
    if not completion["values"]:
        print_hint("No value begins with that.")
    elif completion.get("hasMore"):
        print_hint("There are more values: give more of the beginning.")


def print_statuses(statuses: Sequence[dict[str, Any]]) -> None:
    rows = []
    for shown in statuses:
        computer = shown["computer"]
        for each in shown.get("servers", ()):
            since = ""
            with suppress(ValueError, OverflowError, OSError):  # the Computer may say any number
                since = datetime.fromtimestamp(each["since"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
            counts = (since, str(each["restarts"]), str(each["tools"]))
            rows.append((f"{computer}/{each['name']}", each["state"], *counts, each["reason"]))
        if "error" in shown:
            print_failure(f"{computer}: error {shown['error']['code']}: {shown['error']['message']}")
        elif not shown["servers"]:
            print_hint(f"{computer} has no MCP servers.")
        if "config_problem" in shown:
            print_failure(f"{computer}: its configuration file is not in use: {shown['config_problem']}")
    if rows:
        print_table("Server", {"State": 8, "Since": 10, "Restarts": 8, "Tools": 5, "Reason": 20}, rows)
    elif not statuses:
        print_hint("No Computers.")


def print_contents(contents: ResourceContents) -> None:
    """The contents of a resource: to the byte for who reads them from a pipe or a file; only text at a terminal."""
    if sys.stdout.isatty():
        if contents.binary:
            size = f"{contents.uri} is binary ({len(contents.blob())} bytes)"
            print_failure(f"{size}, and not for a terminal: `> FILE` writes it to a file")
            raise typer.Exit(1)
        for each in contents.contents:
            if each.text is not None:
                typer.echo(plain(each.text))
    else:
        sys.stdout.buffer.write(contents.blob() if contents.binary else contents.text.encode(errors="replace"))
        sys.stdout.buffer.flush()
    left_out = 0 if contents.binary else sum(each.blob is not None for each in contents.contents)
    if left_out:
        print_hint(f"{left_out} of its {len(contents.contents)} contents are binary, and left out: --json prints all.")


def print_event(event: events.Event, *, as_object: bool) -> None:
    now = datetime.now(UTC)
    found = event_json(event)
    if as_object:
        typer.echo(printable_json({"at": now.isoformat(timespec="milliseconds"), **found}, indent=None))
    else:
        name = found.pop("event")
        shown = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in found.items()]
        typer.echo(f"{now.astimezone():%H:%M:%S}  {printable(' '.join([name, *shown]))}")


def event_json(event: events.Event) -> dict[str, Any]:
    said = {field.name: getattr(event, field.name) for field in fields(event)}
    match event:
        case events.ToolsChanged(tools=tools):
            said["tools"] = [tool.name for tool in tools]
        case events.CapabilitiesChanged(capabilities=capabilities):
            said["capabilities"] = capabilities.model_dump(exclude_unset=True)
        case events.Notified(event=name, data=data):
            said = {"notification": name, "data": dict(data)}
    return {"event": type(event).__name__, **{name: value for name, value in said.items() if value is not None}}
