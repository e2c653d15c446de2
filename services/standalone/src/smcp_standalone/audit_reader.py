"""The records of the audit trail (`smcp_bus.audit`) as they are read: from a file; chosen, checked, and as CSV."""

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from smcp_bus.audit import FIELDS, MOST_WAITING, REPEATED, sha256
from smcp_bus.audit_sinks import KEPT, former
from smcp_bus.subjects import ROOT, audit
from smcp_proto.member_names import encode_name
from smcp_proto.printable import printable
from smcp_proto.schemas.tools import MAX_TIMEOUT_S
from smcp_service.settings import SettingsError

REMEMBERED: Final = 2 * MOST_WAITING
"""How many records are remembered: one that was sent again may be in the trail twice."""
_CALL: Final = ("kind", "subject", "office", "name", "computer", "tool", "req_id", "args_sha256")
"""What is the same in the records of a call and of its repeat."""
_NUMBER: Final = ("writer", "seq")
_INCONCLUSIVE: Final = ("broken_off", "503")
"""Outcomes of an attempt after which our SDK repeats a call: its Agent has not learned what became of it."""
COLUMNS: Final = (
    *FIELDS,
    *("trace_id", "address", "event", "why", "request_bytes", "reply_bytes", "source", "writer", "seq", "lost", "by"),
)
CHOSEN_BY: Final = ("office", "subject", "tool", "outcome", "req_id", "kind")
"""Fields that are compared as they are, and the options that say with what."""
_FORMULA: Final = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""A spreadsheet may take a cell that begins so for a formula; some read the full-width forms, too."""


@dataclass(frozen=True, slots=True)
class Line:
    """One record as it was written, or what stands in its place."""

    raw: bytes
    where: str
    """For a message: its place in the stream or the file."""
    subject: str | None = None
    """Of a message in the stream with records of one office and kind."""

    def read(self) -> dict[str, Any] | str:
        """The record, or why it is none, to be shown behind `where`."""
        record = None
        with suppress(orjson.JSONDecodeError):
            record = orjson.loads(self.raw)
        if not isinstance(record, dict) or not isinstance(kind := record.get("kind"), str):
            return "is not a whole record"
        office = record.get("office")
        if self.subject is not None and self.subject != audit(office if isinstance(office, str) else "", kind):
            return "says another kind or office than the subject that it was written on"
        return record


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records to show."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """Some of `CHOSEN_BY`, and what they are."""
    since: datetime | None = None

    def matches(self, record: dict[str, Any]) -> bool:
        if any(record.get(name) != value for name, value in self.fields.items()):
            return False
        return self.since is None or str(record.get("at")) >= self.since.isoformat(timespec="milliseconds")

    @property
    def nats_subject(self) -> str:
        """The narrowest subject of all that match."""
        office = encode_name(self.fields["office"]) if "office" in self.fields else "*"
        return f"{ROOT}.{office}.audit.{self.fields.get('kind', '*')}"


def read_file(path: Path) -> Iterator[Line]:
    """The records of a file and of the former ones, the oldest first. Raises SettingsError: it cannot be read."""
    with ExitStack() as stack:
        opened: list[tuple[Path, BinaryIO]] = []
        name = path
        try:
            # The newest first, and all before one is read: a rotation meanwhile moves files to where they are looked
            # for next, so that one may come twice and none is skipped.
            for name in (former(path, number) for number in range(KEPT + 1)):
                with suppress(FileNotFoundError):
                    opened.append((name, stack.enter_context(name.open("rb"))))
            if not opened:
                raise SettingsError(f"--file (SMCP_AUDIT_FILE): {path}: cannot be read: there is no such file")
            for name, lines in reversed(opened):
                for count, raw in enumerate(lines, 1):
                    if record := raw.strip():
                        cut = "" if raw.endswith(b"\n") else " (cut in the middle)"
                        yield Line(record, f"{name}, line {count}{cut}")
        except OSError as error:
            raise SettingsError(f"{name}: cannot be read: {error.strerror or error}") from None


class FileTail(ExitStack):
    """What is appended to a file from now on, over its rotations. It need not exist yet."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: BinaryIO | None = None
        if (file := self._open()) is not None:
            file.seek(0, os.SEEK_END)

    def read(self) -> Iterator[Line]:
        """The records since the last call. Raises SettingsError: it cannot be read."""
        while (file := self._file or self._open()) is not None:
            is_current = False
            with suppress(FileNotFoundError):
                is_current = os.path.samestat(self._path.stat(), os.fstat(file.fileno()))
            for raw in file:
                if not raw.endswith(b"\n") and is_current:
                    file.seek(-len(raw), os.SEEK_CUR)
                    return
                if record := raw.strip():
                    yield Line(record, str(self._path))
            if is_current:
                return
            self.close()
            self._file = None

    def _open(self) -> BinaryIO | None:
        try:
            self._file = self.enter_context(self._path.open("rb"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SettingsError(f"{self._path}: cannot be read: {error.strerror or error}") from None
        return self._file


class DuplicateRecords:
    """Finds duplicate records: of a message that was sent again; of an approval, by two registries; of a call that our
    SDK repeats, by each gateway that tried it."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        """Times of the last records, by their numbers and by their contents."""
        self._best: dict[str, tuple[bool, str, str]] = {}
        """By call, of the repeat that says most: whether it was conclusive, when it ended, the number of its record."""

    def expect(self, record: dict[str, Any]) -> None:
        """`hide` gets this record later. Without this, only earlier records hide one."""
        call, attempt = _values(record, _CALL), _attempt(record)
        best = self._best.get(call)
        if _is_repeat(record) and (best is None or attempt > best or not _in_one_call(best[1], attempt[1])):
            self._best[call] = attempt
            if len(self._best) > REMEMBERED:
                del self._best[next(iter(self._best))]

    def hide(self, record: dict[str, Any]) -> bool:
        """Whether the same came before, or only another attempt tells the call's outcome."""
        attempt = _attempt(record)
        _, at, number = attempt
        what = _values(record, (*FIELDS[1:], "source") if "source" in record else (*_CALL, "outcome"))
        earlier = self._seen.get(what)
        again = earlier is not None and ("source" in record or (_is_repeat(record) and _in_one_call(earlier, at)))
        if again or ("seq" in record and number in self._seen):
            return True
        self._seen |= {number: at, what: at}
        while len(self._seen) > 2 * REMEMBERED:
            del self._seen[next(iter(self._seen))]
        best = self._best.get(_values(record, _CALL), attempt)
        return not attempt[0] and best > attempt and _in_one_call(best[1], at)


def _is_repeat(record: dict[str, Any]) -> bool:
    """Whether it is of a call that was sent again. A `req_id` that had to be made printable may be that of another."""
    req_id = str(record.get("req_id"))
    return (record.get("kind"), record.get("event")) == ("call", REPEATED) and req_id.isascii() and " " not in req_id


def _attempt(record: dict[str, Any]) -> tuple[bool, str, str]:
    return record.get("outcome") not in _INCONCLUSIVE, str(record.get("at")), _values(record, _NUMBER)


def _values(record: dict[str, Any], names: tuple[str, ...]) -> str:
    return str([record.get(name) for name in names])


def _in_one_call(other: str | None, at: str) -> bool:
    """Whether both times may be of one call. An Agent that repeats a call later has it run again."""
    try:
        times = datetime.fromisoformat(at), datetime.fromisoformat(other or "")
        return abs(times[0] - times[1]) < timedelta(seconds=MAX_TIMEOUT_S)
    except (ValueError, TypeError):  # written by nobody of us
        return False


class Chains:
    """Checks the records of all writers, given in any order. `whole`: each writer's first record must be there, too."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.writers: dict[str, dict[int, tuple[str, str, str]]] = {}
        self.problems: list[str] = []
        self._lost: dict[str, int] = {}

    def add(self, line: Line) -> None:
        record = line.read()
        match record:
            case {"writer": str(writer), "seq": int(seq), "prev": str(prev), **more}:
                known = self.writers.setdefault(writer, {})
                digest = sha256(line.raw)
                if seq in known and known[seq][0] != digest:
                    self.problems.append(f"{line.where}: another record has its number, {seq} of {writer}")
                known[seq] = digest, prev, line.where
                if isinstance(lost := more.get("lost"), int):
                    self._lost[writer] = max(lost, self._lost.get(writer, 0))
            case str():
                self.problems.append(f"{line.where}: {record}")
            case _:
                self.problems.append(f"{line.where}: is not a whole record")

    def check(self) -> list[str]:
        """What is wrong, the first broken record of each writer first named."""
        lost = [f"{each} gave up records, as the trail took none: {count}" for each, count in self._lost.items()]
        broken = (self._broken(*each) for each in self.writers.items())
        return [*self.problems, *lost, *filter(None, broken)]

    def _broken(self, writer: str, records: dict[int, tuple[str, str, str]]) -> str | None:
        first = before = min(records)
        if first > 1 and self.whole:
            return f"{records[first][2]}: the records before it, 1 to {first - 1} of {writer}, are missing"
        # Where the beginning has expired, those that were sent again later than their neighbours outlive them.
        begins = first + MOST_WAITING if first > 1 else 0
        for seq in sorted(records)[1:]:
            _, prev, where = records[seq]
            if seq != before + 1:
                if before >= begins:
                    missing = f"{before + 1} to {seq - 1}" if seq - before > 2 else str(seq - 1)
                    return f"{where}: the record before it, {missing} of {writer}, is missing"
            elif records[before][0] != prev:
                return f"{records[before][2]}: it was changed, record {before} of {writer}"
            before = seq
        return None


def csv_line(values: list[object]) -> str:
    """One line of CSV, in which no cell is a formula for a spreadsheet, or holds what a terminal obeys."""
    line, cells = io.StringIO(), list[object]()
    for value in values:
        cell = value if value is None or isinstance(value, int | float) else printable(str(value), newline="\n")
        cells.append(f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell)
    csv.writer(line).writerow(cells)
    return line.getvalue().removesuffix("\r\n")
