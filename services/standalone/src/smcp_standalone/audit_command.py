"""`smcp audit`: shows, follows and checks the records of who did what. `smcp watch`: follows those of one office."""

import asyncio
import itertools
import os
import unicodedata
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from smcp_bus.audit import Kind, in_records
from smcp_bus.nats.bus import NatsBus
from smcp_bus.registry_contract import Records, RecordsQuestion
from smcp_bus.subjects import AUDIT_OF_SEVERAL
from smcp_computer.control_commands import when
from smcp_proto.printable import escaped_json, printable, printable_json
from smcp_service.cli import parse_time, print_command
from smcp_service.lifecycle import Failure, counted
from smcp_service.logging import configure_logging
from smcp_service.settings import SettingsError
from smcp_standalone import audit_reader
from smcp_standalone.audit_reader import Duplicates, Line, Wanted
from smcp_standalone.operator_commands import AsJson, ask, check_office, operator_bus

app = typer.Typer(
    name="audit",
    help="Who did what: joins, leaves, refusals, calls, cancels, approvals and keys, as SMCP_AUDIT records them.",
    no_args_is_help=True,
)
POLL_S: Final = 1.0
"""New records are asked for so often (seconds): a subscription would lose those of an interruption."""
SKEW_S: Final = 300
"""How far the clocks of a writer and of nats-server may differ (seconds): a record is stored after its `at`."""
_SHOWN: Final = (
    *("office", "role", "name", "computer", "tool", "event", "ms"),
    *("req_id", "subject", "by", "address", "why"),
)
WATCHED: Final = (
    *("at", "kind", "office", "role", "name", "computer", "tool"),
    *("event", "outcome", "why", "ms", "req_id", "trace_id"),
)
"""What `watch` shows: never arguments or results, which a setting may put into a record."""
_BLANKS: Final = str.maketrans("\t\r\n", "   ")
"""In JSON they stand between values only."""
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
Since = Annotated[
    str | None, typer.Option(metavar="WHEN", help="90m, 12h, 7d, or a date (UTC), or a time like 2027-01-31T12:00Z.")
]
AsCsv = Annotated[bool, typer.Option("--csv", help="As CSV, for a spreadsheet.")]


@app.command("list", help="Show the records, the oldest first.")
@app.command("follow", help="Show records as they are made, until ctrl-C. They come from NATS.")
def show_records(
    context: typer.Context,
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
    shown, follows = _Shown(context), context.info_name == "follow"
    if follows and file is not None:
        raise SettingsError(f"--file (SMCP_AUDIT_FILE): follow reads NATS alone; use tail -F {file}")

    async def main(stop: asyncio.Event) -> None:
        if follows:
            await _follow(shown.wanted, shown.take, stop, "following; ctrl-C ends it")
            return
        async for line in _lines(file, shown.wanted):
            shown.expect(line)
        async for line in _lines(file, shown.wanted):
            shown.take(line)
        if not shown.any:
            typer.echo("no record matches", err=True)

    _run(main)


def watch(
    office: Annotated[str, typer.Argument(metavar="OFFICE")],
    count: Annotated[int | None, typer.Option(min=1, help="End after so many events.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show joins, leaves and calls of an office as they come. Its gateways need SMCP_AUDIT=on, as in `smcp up`."""
    wanted = Wanted(office=in_records("office", check_office(office)))
    duplicates, numbers = Duplicates(), itertools.count(1)

    async def main(stop: asyncio.Event) -> None:
        def show(line: Line) -> None:
            record = line.read()
            if stop.is_set() or isinstance(record, str) or not wanted.matches(record):
                return
            if duplicates.seen_before(record):
                return
            event = {field: record.get(field) for field in WATCHED}
            typer.echo(printable_json(event, indent=None) if as_json else _event_line(event))
            if next(numbers) == count:
                stop.set()

        await _follow(wanted, show, stop, f"Watching the office {office!r}; ctrl-C ends it.")

    _run(main)


async def _follow(wanted: Wanted, take: Callable[[Line], None], stop: asyncio.Event, begun: str) -> None:
    """Give each new record that may match to `take`, until `stop`."""
    async with operator_bus() as bus:
        after = (await read_page(bus, wanted, 0)).last
        typer.echo(begun, err=True)
        lost = False
        while not stop.is_set():
            try:
                page = await read_page(bus, wanted, after)
            except Failure as error:  # what comes meanwhile is read later
                if not lost:
                    typer.echo(f"{error}; it is asked again", err=True)
                lost = True
            else:
                lost = False
                for line in lines_of(page):
                    take(line)
                if page.records:
                    after = page.records[-1].seq
                    continue
                after = after if after <= page.last else 0  # 0: the stream was made anew
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_S)


@app.command("verify")
def verify(file: File = None) -> None:
    """Check that no record was removed or changed: each holds the hash of its writer's record before it."""

    is_whole = file is None or not os.path.exists(f"{file}.1")  # noqa: PTH110 -- also where it may not be looked for

    async def main(stop: asyncio.Event) -> None:
        if file is not None:
            chains, removed = audit_reader.Chains(whole=is_whole), 0
            for line in audit_reader.read_file(file):
                chains.add(line)
        else:
            async with operator_bus() as bus:
                chains = audit_reader.Chains(whole=False)
                async for line in read_stream(bus, Wanted()):
                    chains.add(line)
                now = await read_page(bus, Wanted(), 0)  # what expired while it was read counts
                chains.whole, removed = now.first <= 1, now.deleted
        problems = chains.check()
        if removed:
            problems.append(f"{removed} messages were deleted from the middle of the stream")
        for problem in problems:
            typer.echo(printable(problem), err=True)
        if problems:
            raise Failure(f"the audit trail is broken: {counted(len(problems), 'problem')}")
        if not (records := sum(map(len, chains.writers.values()))):
            raise Failure("there is no record: nothing was checked")
        said = f"{counted(records, 'record')} of {len(chains.writers)} processes: none is missing or changed"
        typer.echo(said if file is None else f"{said}; nothing holds the hash of the last one of each process")

    _run(main)


async def read_page(bus: NatsBus, wanted: Wanted, after: int) -> Records:
    """Messages of NATS's stream that may match. Raises Failure."""
    since = 0 if wanted.since is None else max(0, int(wanted.since.timestamp()) - SKEW_S)
    question = RecordsQuestion(after=after, subject=wanted.nats_subject, since=since)
    return await ask(bus, "records", question, Records)


def lines_of(page: Records) -> list[Line]:
    return [
        Line(raw, f"message {each.seq}", None if each.subject == AUDIT_OF_SEVERAL else each.subject)
        for each in page.records
        for raw in each.raw.split(b"\n")
    ]


async def read_stream(bus: NatsBus, wanted: Wanted) -> AsyncIterator[Line]:
    """The records of NATS's stream that may match, the oldest first, up to the last one of now. Raises Failure."""
    page = await read_page(bus, wanted, 0)
    until = page.last
    while page.records:
        for line in lines_of(page):
            yield line
        after = page.records[-1].seq
        if after >= until:
            return
        page = await read_page(bus, wanted, after)


async def _lines(file: Path | None, wanted: Wanted) -> AsyncIterator[Line]:
    if file is not None:
        for line in audit_reader.read_file(file):
            yield line
        return
    async with operator_bus() as bus:
        async for line in read_stream(bus, wanted):
            yield line


def _wanted(given: Mapping[str, Any]) -> Wanted:
    """Raises SettingsError for what no record can have: it would look as if nothing had happened."""
    chosen = {name: given[name] for name in audit_reader.CHOSEN_BY}
    for name, value in chosen.items():
        if value is None:
            continue
        chosen[name] = in_records(name, unicodedata.normalize("NFC", value) if name == "office" else value)
        if not chosen[name]:
            raise SettingsError(f"--{name.replace('_', '-')}: is empty")
    kind = chosen["kind"]
    if kind is not None and kind not in (kinds := get_args(Kind)):
        raise SettingsError(f"--kind: {kind!r} is none of {', '.join(kinds)}")
    since = None if given["since"] is None else parse_time("--since", given["since"], -1)
    return Wanted(**chosen, since=since)


def _run(main: Any) -> None:
    configure_logging("smcp-audit", level="error")
    print_command(main)


class _Shown:
    """Prints records that are wanted, each once."""

    def __init__(self, context: typer.Context) -> None:
        self._json, self._csv = context.params["as_json"], context.params["as_csv"]
        if self._json and self._csv:
            raise SettingsError("--csv and --json: set only one")
        self.wanted = _wanted(context.params)
        self.any = False
        self._attempts, self._duplicates = audit_reader.Attempts(), Duplicates()
        if self._csv:
            typer.echo(audit_reader.csv_line(list(audit_reader.COLUMNS)))

    def expect(self, line: Line) -> None:
        """The record is shown later, if no other says what became of its call."""
        if not isinstance(record := line.read(), str):
            self._attempts.add(record)

    def take(self, line: Line) -> None:
        record = line.read()
        if isinstance(record, str):
            typer.echo(f"{line.where}: {record}", err=True)
            return
        if self._duplicates.seen_before(record) or self._attempts.replaced(record) or not self.wanted.matches(record):
            return
        self.any = True
        if self._csv:
            typer.echo(audit_reader.csv_line([record.get(column) for column in audit_reader.COLUMNS]))
        elif self._json:
            typer.echo(escaped_json(line.raw.decode().translate(_BLANKS)))
        else:
            typer.echo(_line(record))


def _line(record: dict[str, Any]) -> str:
    said = [when(str(record.get("at"))), record.get("kind"), record.get("outcome")]
    said += [f"{name}={record[name]}" for name in _SHOWN if record.get(name) is not None]
    return "  ".join(printable(str(each)) for each in said)


def _event_line(event: Mapping[str, Any]) -> str:
    with suppress(ValueError, TypeError):
        event = {**event, "at": f"{datetime.fromisoformat(event['at']).astimezone():%H:%M:%S}"}
    who = " ".join(str(event[field]) for field in ("role", "name") if event[field] is not None)
    asked = " ".join(str(event[field]) for field in ("computer", "tool") if event[field] is not None)
    took = "" if event["ms"] is None else f"{event['ms']} ms"
    words = [event["at"], event["kind"], who, event["event"], asked and f"-> {asked}"]
    return printable("  ".join(str(word) for word in (*words, event["outcome"], event["why"], took) if word))
