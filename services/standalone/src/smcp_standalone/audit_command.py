"""`smcp audit`: shows, follows and checks the records of who did what. `smcp watch`: follows those of one office."""

import asyncio
import json
import os
import re
import unicodedata
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from smcp_bus.audit import OUTCOMES, Kind, in_records
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_contract import Records, RecordsQuestion
from smcp_bus.subjects import AUDIT_OF_SEVERAL
from smcp_computer.control_commands import when
from smcp_proto.printable import escaped_json, printable
from smcp_service.cli import parse_time, print_command
from smcp_service.lifecycle import Failure, counted
from smcp_service.logging import configure_logging
from smcp_service.settings import SettingsError
from smcp_standalone import audit_reader
from smcp_standalone.audit_reader import DuplicateRecords, Line, Wanted
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
@app.command("follow", help="Show records as they are made, until ctrl-C.")
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
    if as_json and as_csv:
        raise SettingsError("--csv and --json: set only one")
    shown, follows = _Shown(_wanted(context.params), as_json=as_json, as_csv=as_csv), context.info_name == "follow"

    async def main(stop: asyncio.Event) -> None:
        if follows:
            said = "following; ctrl-C ends it"
            await (_follow(shown, said, stop) if file is None else _follow_file(shown, said, file, stop))
            return
        async for line in _lines(file, shown.wanted):
            shown.expect(line)
        async for line in _lines(file, shown.wanted):
            shown.take(line)
        if not shown.count:
            typer.echo("no record matches", err=True)

    _run(main)


def watch(
    office: Annotated[str, typer.Argument(metavar="OFFICE")],
    count: Annotated[int | None, typer.Option(min=1, help="Stop after N events.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show joins, leaves and calls of an office as they happen. Gateways need SMCP_AUDIT=on without SMCP_AUDIT_FILE."""
    wanted = Wanted({"office": in_records("office", check_office(office)) or ""})
    shown = _Shown(wanted, as_json=as_json, fields=WATCHED, most=count)
    _run(partial(_follow, shown, f"Watching the office {office!r}; ctrl-C ends it."))


async def _follow(shown: "_Shown", begun: str, stop: asyncio.Event) -> None:
    async with operator_bus() as bus:
        after = (await read_page(bus, shown.wanted, 0)).last
        typer.echo(begun, err=True)
        lost = False
        while not stop.is_set() and not shown.full:
            try:
                page = await read_page(bus, shown.wanted, after)
            except Failure as error:  # what comes meanwhile is read later
                if not lost:
                    typer.echo(f"{error}; it is asked again", err=True)
                lost = True
            else:
                lost = False
                for line in lines_of(page):
                    shown.take(line)
                if page.records:
                    after = page.records[-1].seq
                    continue
                after = after if after <= page.last else 0  # 0: the stream was made anew
            await _pause(stop)


async def _follow_file(shown: "_Shown", begun: str, file: Path, stop: asyncio.Event) -> None:
    with audit_reader.FileTail(file) as tail:
        typer.echo(begun, err=True)
        while not stop.is_set():
            for line in tail.read():
                shown.take(line)
            await _pause(stop)


async def _pause(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), POLL_S)


@app.command("verify")
def verify(file: File = None) -> None:
    """Check that no record was removed or changed: each holds the hash of its writer's record before it."""

    is_whole = not os.path.exists(f"{file}.1")  # noqa: PTH110 -- also where it may not be looked for

    async def main(stop: asyncio.Event) -> None:
        chains, now = audit_reader.Chains(whole=is_whole), Records(records=[], first=1, last=0, deleted=0)
        async for line in _lines(file, Wanted()):
            chains.add(line)
        if file is None:
            async with operator_bus() as bus:
                now = await read_page(bus, Wanted(), 0)  # what expired while it was read counts
            chains.whole = now.first <= 1
        problems, gone = chains.check(), max(0, now.first - 1)
        if now.deleted:
            problems.append(f"deleted from the stream: {counted(now.deleted, 'message')}")
        if gone and not now.may_expire:
            problems.append(
                f"deleted from the beginning of the stream: {counted(gone, 'message')}, none can have expired"
            )
        for problem in problems:
            typer.echo(printable(problem), err=True)
        if problems:
            raise Failure(f"the audit trail is broken: {counted(len(problems), 'problem')}")
        if not (records := sum(map(len, chains.writers.values()))):
            raise Failure("there is no record: nothing was checked")
        writers = f"{len(chains.writers)} process{'es' if len(chains.writers) != 1 else ''}"
        said = f"{counted(records, 'record')} of {writers}: none is missing or changed"
        said += f"; {counted(gone, 'older message')} expired" if gone else ""
        typer.echo(said if file is None else f"{said}; nothing holds the hash of the last one of each process")

    _run(main)


async def read_page(bus: Bus, wanted: Wanted, after: int) -> Records:
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


async def _lines(file: Path | None, wanted: Wanted) -> AsyncIterator[Line]:
    """The records that may match, oldest first: of the file, or of NATS's stream up to its present end."""
    if file is not None:
        for line in audit_reader.read_file(file):
            yield line
        return
    async with operator_bus() as bus:
        page = await read_page(bus, wanted, 0)
        until = page.last
        while page.records:
            for line in lines_of(page):
                yield line
            if (after := page.records[-1].seq) >= until:
                return
            page = await read_page(bus, wanted, after)


def _wanted(given: Mapping[str, Any]) -> Wanted:
    """Raises SettingsError for what no record can have: it would look as if nothing had happened."""
    chosen = {}
    for name in audit_reader.CHOSEN_BY:
        if (value := given[name]) is None:
            continue
        chosen[name] = in_records(name, unicodedata.normalize("NFC", value) if name == "office" else value) or ""
        if not chosen[name]:
            raise SettingsError(f"--{name.replace('_', '-')}: is empty")
    kinds = get_args(Kind)
    if chosen.get("kind", "call") not in kinds:
        raise SettingsError(f"--kind: {chosen['kind']!r} is none of {', '.join(kinds)}")
    if (outcome := chosen.get("outcome", "ok")) not in OUTCOMES and not outcome.isdecimal():
        raise SettingsError(f"--outcome: {outcome!r} is none of {', '.join(OUTCOMES)}, and no code such as 403")
    return Wanted(chosen, None if given["since"] is None else parse_time("--since", given["since"], -1))


def _run(main: Any) -> None:
    configure_logging("smcp-audit", level="error")
    print_command(main)


@dataclass
class _Shown:
    """Prints records that are wanted, each once: whole ones, or some of their `fields`, and at `most` so many."""

    wanted: Wanted
    as_json: bool
    as_csv: bool = False
    fields: Collection[str] = ()
    most: int | None = None

    def __post_init__(self) -> None:
        self.count, self._repeats = 0, DuplicateRecords()
        if self.as_csv:
            typer.echo(audit_reader.csv_line(list(audit_reader.COLUMNS)))

    @property
    def full(self) -> bool:
        return self.count == self.most

    def expect(self, line: Line) -> None:
        """The record is shown later, if no other says what became of its call."""
        if not isinstance(record := line.read(), str):
            self._repeats.expect(record)

    def take(self, line: Line) -> None:
        record = line.read()
        if isinstance(record, str):
            typer.echo(f"{line.where}: {record}", err=True)
            return
        if self.full or self._repeats.hide(record) or not self.wanted.matches(record):
            return
        self.count += 1
        text = re.sub("[\t\r\n]", " ", line.raw.decode())  # in JSON they stand between values only
        if self.fields:
            record = {field: record.get(field) for field in self.fields}
            text = json.dumps(record, ensure_ascii=False)
        if self.as_csv:
            typer.echo(audit_reader.csv_line([record.get(column) for column in audit_reader.COLUMNS]))
        else:
            typer.echo(escaped_json(text) if self.as_json else _line(record))


def _line(record: dict[str, Any]) -> str:
    said = [when(str(record.get("at"))), record.get("kind"), record.get("outcome")]
    said += [f"{name}={record[name]}" for name in _SHOWN if record.get(name) is not None]
    return "  ".join(printable(str(each)) for each in said)
