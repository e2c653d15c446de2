"""`smcp audit`: shows, follows and checks the records of who did what."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from smcp_bus.bus import Incoming
from smcp_proto.printable import printable
from smcp_service.lifecycle import Failure, plain_failures, run
from smcp_service.logging import configure_logging
from smcp_service.settings import SettingsError
from smcp_standalone.audit_reader import (
    COLUMNS,
    Chains,
    Line,
    Wanted,
    csv_line,
    read_file,
    read_stream,
    stream_info,
)
from smcp_standalone.operator_connection import operator_bus

app = typer.Typer(
    name="audit",
    help="Who did what: joins, leaves, refusals, calls, cancels, approvals and keys, as SMCP_AUDIT records them.",
    no_args_is_help=True,
)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN: Final = re.compile(r"(\d{1,6})([smhd])")

File = Annotated[
    Path | None,
    typer.Option("--file", "-f", envvar="SMCP_AUDIT_FILE", help="Read this file (and FILE.1, …) in place of NATS."),
]
Office = Annotated[str | None, typer.Option(help="Only of this office.")]
Subject = Annotated[str | None, typer.Option(help="Only of the holder of this key or token.")]
Tool = Annotated[str | None, typer.Option(help="Only calls of this tool.")]
Outcome = Annotated[str | None, typer.Option(help="Only with this outcome: ok, tool_error, 403, …")]
KindOf = Annotated[str | None, typer.Option("--kind", help="join, leave, refusal, call, cancel, approval or key.")]
ReqId = Annotated[str | None, typer.Option(help="Only of this request.")]
Since = Annotated[str | None, typer.Option(metavar="WHEN", help="90m, 12h, 7d, or a time like 2027-01-31T12:00Z.")]
AsJson = Annotated[bool, typer.Option("--json", help="One record a line, as it was written.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="For a spreadsheet.")]


@app.command("list")
def list_records(
    file: File = None,
    office: Office = None,
    subject: Subject = None,
    tool: Tool = None,
    outcome: Outcome = None,
    kind: KindOf = None,
    req_id: ReqId = None,
    since: Since = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show the records, the oldest first."""
    wanted = Wanted(office, subject, tool, outcome, req_id, kind, _since(since))
    show = _shown(as_json=as_json, as_csv=as_csv)
    seen: set[tuple[object, object]] = set()

    async def main(stop: asyncio.Event) -> None:
        async for line in _lines(file, wanted):
            record = line.record
            if record is None:
                typer.echo(f"{line.where}: is no whole record", err=True)
                continue
            number = record.get("writer"), record.get("seq")
            if wanted.matches(record) and number not in seen:  # one that was sent again may be there twice
                seen.add(number)
                show(record, line.raw)
        if not seen:
            typer.echo("no record matches", err=True)

    _run(main)


@app.command("follow")
def follow(
    office: Office = None,
    subject: Subject = None,
    tool: Tool = None,
    outcome: Outcome = None,
    kind: KindOf = None,
    req_id: ReqId = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show records as they are made, until ctrl-C. They come from NATS."""
    wanted = Wanted(office, subject, tool, outcome, req_id, kind)
    show = _shown(as_json=as_json, as_csv=as_csv)

    async def take(incoming: Incoming) -> None:
        record = Line(incoming.body, "").record
        if record is not None and wanted.matches(record):
            show(record, incoming.body)

    async def main(stop: asyncio.Event) -> None:
        async with operator_bus() as bus:
            await bus.listen(wanted.nats_subject, take)
            typer.echo("following; ctrl-C ends it", err=True)
            await stop.wait()

    _run(main)


@app.command("verify")
def verify(file: File = None) -> None:
    """Check that no record was removed or changed: each holds the hash of its writer's record before it."""

    async def main(stop: asyncio.Event) -> None:
        if file is not None:
            chains, removed = Chains(whole=not file.with_name(f"{file.name}.1").exists()), 0
            for line in read_file(file):
                chains.add(line)
        else:
            async with operator_bus() as bus:
                info = await stream_info(bus)
                chains, removed = Chains(whole=info.first <= 1), info.deleted
                async for line in read_stream(bus, Wanted()):
                    chains.add(line)
        problems = chains.check()
        if removed:
            problems.append(f"{removed} messages were deleted from the middle of the stream")
        for problem in problems:
            typer.echo(problem, err=True)
        if problems:
            raise Failure(f"the audit trail is broken: {problems[0]}")
        typer.echo(f"{chains.records} records: none is missing or changed")

    _run(main)


async def _lines(file: Path | None, wanted: Wanted) -> AsyncIterator[Line]:
    if file is not None:
        for line in read_file(file):
            yield line
        return
    async with operator_bus() as bus:
        await stream_info(bus)
        async for line in read_stream(bus, wanted):
            yield line


def _run(main: Any) -> None:
    configure_logging("smcp-audit", level="warning")

    async def plain(stop: asyncio.Event) -> None:
        with plain_failures():
            await main(stop)

    raise typer.Exit(run(plain))


def _shown(*, as_json: bool, as_csv: bool) -> Any:
    if as_json and as_csv:
        raise SettingsError("--csv: or --json, not both")
    if as_csv:
        typer.echo(csv_line(list(COLUMNS)))
        return lambda record, raw: typer.echo(csv_line([record.get(column) for column in COLUMNS]))
    if as_json:
        return lambda record, raw: typer.echo(raw.decode("utf-8", "replace"))
    return lambda record, raw: typer.echo(_line(record))


def _line(record: dict[str, Any]) -> str:
    said = [record.get("at"), record.get("kind"), record.get("outcome"), record.get("office")]
    said += [record.get("role"), record.get("name"), record.get("computer"), record.get("tool") or record.get("event")]
    ms = record.get("ms")
    parts = ["-" if each is None else printable(str(each)) for each in said]
    parts.append("-" if ms is None else f"{ms} ms")
    more = [(name, record.get(name)) for name in ("req_id", "subject", "address", "why")]
    parts += [f"{name}={printable(str(value))}" for name, value in more if value is not None]
    return "  ".join(parts)


def _since(text: str | None) -> datetime | None:
    if text is None:
        return None
    if (span := _SPAN.fullmatch(text)) is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})
    try:
        since = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"--since: {text!r} is no time: 90m, 12h, 7d, or like 2027-01-31T12:00Z") from None
    if since.tzinfo is None:
        raise SettingsError(f"--since: {text!r} says no time zone: write it like 2027-01-31T12:00Z")
    return since.astimezone(UTC)
