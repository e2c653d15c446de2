"""The records of the audit trail as they are read: from NATS's stream or from a file; chosen, checked, and as CSV.

`smcp_bus.audit` says what a record holds. A record is checked as the bytes that were written.
"""

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from smcp_bus.audit import FIELDS, STREAM, sha256
from smcp_bus.audit_file import former
from smcp_bus.nats.bus import NatsBus
from smcp_bus.nats.wire import decode_head
from smcp_bus.subjects import ROOT
from smcp_proto.member_names import encode_name
from smcp_service.lifecycle import Failure

BATCH: Final = 1000
"""Records that are asked for at a time."""
ANSWER_S: Final = 10.0
"""How long NATS may take for them (seconds)."""
READ: Final = (f"$JS.API.STREAM.INFO.{STREAM}", f"$JS.API.DIRECT.GET.{STREAM}")
"""What has to be allowed to a reader of the stream."""
COLUMNS: Final = (*FIELDS, "trace_id", "address", "event", "why", "request_bytes", "reply_bytes", "writer", "seq")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet takes a cell that begins so for a formula."""


@dataclass(frozen=True, slots=True)
class Line:
    """One record as it was written, or what stands in its place."""

    raw: bytes
    where: str
    """For a message: its place in the stream or the file."""

    @property
    def record(self) -> dict[str, Any] | None:
        """None: it is no record."""
        try:
            record = orjson.loads(self.raw)
        except orjson.JSONDecodeError:
            return None
        return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records to show; None: any."""

    office: str | None = None
    subject: str | None = None
    tool: str | None = None
    outcome: str | None = None
    req_id: str | None = None
    kind: str | None = None
    since: datetime | None = None

    def matches(self, record: dict[str, Any]) -> bool:
        for name in ("office", "subject", "tool", "outcome", "req_id", "kind"):
            wanted = getattr(self, name)
            if wanted is not None and record.get(name) != wanted:
                return False
        return self.since is None or self.since.isoformat(timespec="milliseconds") <= str(record.get("at"))

    @property
    def nats_subject(self) -> str:
        """The narrowest subject of all that match."""
        office = "*" if self.office is None else encode_name(self.office)
        return f"{ROOT}.{office}.audit.{self.kind or '*'}"


def read_file(path: Path) -> Iterator[Line]:
    """The records of a file and of the former ones, the oldest first. Raises Failure: it cannot be read."""
    number = 0
    while former(path, number + 1).exists():
        number += 1
    for each in range(number, -1, -1):
        file = former(path, each)
        try:
            with file.open("rb") as lines:
                for count, raw in enumerate(lines, 1):
                    if raw.strip():
                        cut = "" if raw.endswith(b"\n") else " (cut in the middle)"
                        yield Line(raw.rstrip(b"\n"), f"{file}, line {count}{cut}")
        except OSError as error:
            raise Failure(f"{file}: cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True)
class Stream:
    first: int
    """The number of the oldest message that is kept."""
    deleted: int
    """Messages that were taken out of the middle."""


async def stream_info(bus: NatsBus) -> Stream:
    """Raises Failure: there is no stream, or it must not be read."""
    reply = await bus.request(READ[0], b"", timeout=ANSWER_S)
    said = orjson.loads(reply.body)
    if "error" in said:
        raise Failure(f"the audit trail in NATS: {said['error'].get('description')} (is SMCP_AUDIT on at a registry?)")
    return Stream(said["state"]["first_seq"], said["state"].get("num_deleted", 0))


async def read_stream(bus: NatsBus, wanted: Wanted) -> AsyncIterator[Line]:
    """The records of NATS's stream that may match, the oldest first."""
    came: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
    inbox = f"{bus.inbox_prefix}.{bus.process}.records"
    number = bus.client.attach(inbox, "", lambda subject, reply, head, body: came.put_nowait((head, body)))
    try:
        seq, pending = 1, True
        while pending:
            asked: dict[str, Any] = {"seq": seq, "batch": BATCH, "next_by_subj": wanted.nats_subject}
            if wanted.since is not None and seq == 1:
                asked = {**asked, "start_time": wanted.since.isoformat()}
                del asked["seq"]
            bus.client.check(READ[1], 0, 0)
            bus.client.send(READ[1], inbox, b"", orjson.dumps(asked))
            pending = False
            while True:
                async with asyncio.timeout(ANSWER_S):
                    head, body = await came.get()
                headers = decode_head(head)
                if (found := headers.get("Nats-Sequence")) is None:
                    break  # the end of this batch, or nothing (more) to find
                seq, pending = int(found) + 1, int(headers.get("Nats-Num-Pending", "0")) > 0
                yield Line(body, f"message {found}")
    except TimeoutError:
        raise Failure("NATS does not give the audit trail (may this credential read it?)") from None
    finally:
        bus.client.unsubscribe_at_server(number)
        bus.client.detach(number)


class Chains:
    """Checks the records of all writers, given in any order.

    Args:
        whole: nothing has expired, so that each writer's first record has to be there.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._writers: dict[str, dict[int, tuple[str, str, str]]] = {}
        self.records = 0
        self.problems: list[str] = []

    def add(self, line: Line) -> None:
        record = line.record
        self.records += 1
        match record:
            case {"writer": str(writer), "seq": int(seq), "prev": str(prev)}:
                known = self._writers.setdefault(writer, {})
                digest = sha256(line.raw)
                if seq in known and known[seq][0] != digest:
                    self.problems.append(f"{line.where}: another record has its number, {seq} of {writer}")
                known[seq] = digest, prev, line.where
            case _:
                self.problems.append(f"{line.where}: is no whole record")

    def check(self) -> list[str]:
        """What is wrong, the first broken record of each writer first named."""
        found = list(self.problems)
        for writer, records in self._writers.items():
            if (problem := self._broken(writer, records)) is not None:
                found.append(problem)
        return found

    def _broken(self, writer: str, records: dict[int, tuple[str, str, str]]) -> str | None:
        before: int | None = None
        for seq in sorted(records):
            _, prev, where = records[seq]
            if before is None:
                if seq > 1 and self._whole:
                    return f"{where}: the records before it, 1 to {seq - 1} of {writer}, are missing"
            elif seq != before + 1:
                missing = f"{before + 1} to {seq - 1}" if seq - before > 2 else str(seq - 1)
                return f"{where}: the record before it, {missing} of {writer}, is missing"
            elif records[before][0] != prev:
                return f"{records[before][2]}: it was changed, record {before} of {writer}"
            before = seq
        return None


def csv_line(values: list[object]) -> str:
    """One line of CSV, in which no cell is a formula for a spreadsheet."""
    text = io.StringIO()
    csv.writer(text).writerow([_cell(value) for value in values])
    return text.getvalue().removesuffix("\r\n")


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
