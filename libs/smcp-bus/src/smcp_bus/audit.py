"""The audit trail: one record for each join, leave, refusal, call, cancel, approval and change of keys.

The process that decides calls `Trail.write`, before its answer goes out; that makes the line of the log, too. A record
is JSON, and holds the SHA-256 of its writer's record before it (`prev`), so that one that was removed or changed shows.
Records go to a sink (`audit_sinks`). Those that it has not taken are kept and sent again, with the same id. Nothing
waits for that, but in the mode `required`: there `write` returns what to wait for.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, datetime
from math import inf
from operator import attrgetter
from typing import Any, Final, Literal

import orjson

from smcp_bus import exact_json
from smcp_bus.dispatch import Answer, failed
from smcp_bus.limits import Buckets, Rate
from smcp_bus.subjects import AUDIT_OF_SEVERAL, audit
from smcp_proto.errors import Unavailable
from smcp_proto.printable import printable, redacted

Kind = Literal["join", "leave", "refusal", "call", "cancel", "approval", "key"]
OUTCOMES: Final = (
    *("ok", "moved", "unchanged", "back", "disconnected", "expired", "not_back"),
    *("tool_error", "timeout", "cancelled", "broken_off"),
    *("yes", "always", "hour", "no", "unreadable", "added", "removed"),
)
"""What was decided, where it is not the code of an error: `docs/guides/audit.md` explains them."""

STREAM: Final = "AUDIT"
"""JetStream's stream of all records. A registry makes it where it is missing."""
REPEATED: Final = "repeat"
"""The `event` of a call that our SDK sent again, since it does not know what became of the attempt before."""
NOT_WRITTEN: Final = "nothing is done that cannot be recorded (SMCP_AUDIT=required), and the audit trail takes nothing"
ANSWER_S: Final = 2.0
"""After this long without an answer a record counts as not written, and is sent again (seconds)."""
MOST_WAITING: Final = 10_000
"""Records that wait for the sink; while there are so many, new ones are lost, which the next record says."""
MOST_WAITING_BYTES: Final = 16 * 1024 * 1024
"""The same in bytes: with arguments and results a record has up to some 128 KiB."""
SENT_AGAIN: Final = 1000
LONGEST_NAME: Final = 512
"""Bytes of a name that may be legal: 128 characters (`member_names`)."""
LONGEST_TEXT: Final = 256
"""Bytes of any other text."""
LONGEST_CONTENT: Final = 64 * 1024
REFUSAL_RATE: Final = Rate(10 / 60, 25 * 60)
"""Recorded refusals of one sender: 250 at once, then 10 a minute, so one sender fills 256 MiB in four days."""


@dataclass(slots=True)
class Event:
    """What happened. Texts may be a peer's: they are cut, and made printable, when they are written."""

    kind: Kind
    outcome: str
    """The code of an error, or one of `OUTCOMES`."""
    office: str | None = None
    subject: str | None = None
    """Of the credential (key or token) of the caller; of a call for a user, the user's."""
    by: str | None = None
    """Of a call for a user: the subject of the Agent that makes it."""
    role: str | None = None
    name: str | None = None
    address: str | None = None
    computer: str | None = None
    tool: str | None = None
    seconds: float | None = None
    req_id: str | None = None
    trace_id: int | None = None
    event: str | None = None
    """The name of the refused event; the id of a key; or `REPEATED`."""
    why: str | None = None
    arguments: Any = None
    args_sha256: str | None = None
    result: bytes | None = field(default=None, repr=False)
    request_bytes: int | None = None
    reply_bytes: int | None = None
    source: str | None = None
    """Of an approval: its writer and number at the Computer. Two registries may record it, if an answer is lost."""


@dataclass(eq=False, slots=True)
class Batch:
    """Records that go to the sink together, and stay together when they are sent again."""

    number: int
    """Of its first record."""
    subject: str
    sent_at: float
    records: list[bytes] = field(default_factory=list)
    size: int = 0
    waiters: "list[asyncio.Future[bool]]" = field(default_factory=list)
    failed: bool = False

    @property
    def body(self) -> bytes:
        """One record in each line."""
        return b"\n".join(self.records)

    def answer(self, *, is_written: bool) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(is_written)


class Sink:
    """Where records go. It answers a batch by `Trail.taken` or `Trail.refused`, in `send` or later, or not at all."""

    most_bytes = 128 * 1024
    """Of several records in one batch: as much as one with arguments and results may have."""

    def later(self, leave: Callable[[], None]) -> None:
        """Call it before anything leaves that is sent after this; it gives `send` the records made until then."""
        leave()

    def send(self, batch: Batch) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


@dataclass(eq=False, repr=False)
class Trail:
    """The events of one process."""

    log: logging.Logger
    """Where their lines go; those of calls, and of approvals at another process, at `debug`."""
    _: KW_ONLY
    writer: str = ""
    """The name of this process in its records, new at each start."""
    open_sink: "InitVar[Callable[[Trail], Sink] | None]" = None
    """None: there are lines of the log only."""
    required: bool = False
    """Whether the caller of `write` is to wait, and `check` refuses while records are not taken."""
    content: bool = False
    """Whether arguments and results stand in the records of calls."""

    def __post_init__(self, open_sink: "Callable[[Trail], Sink] | None") -> None:
        self._number = 0
        self._prev = ""
        self._batches: dict[int, Batch] = {}
        self._gathered: list[tuple[Event, asyncio.Future[bool] | None]] = []
        self.waiting = 0
        """Records that the sink has not taken yet."""
        self._waiting_bytes = 0
        self._failing = 0
        self.problem: str | None = None
        self.written = self.failures = self.lost = 0
        self._loop = asyncio.get_running_loop()
        self._refusal_rates = Buckets(REFUSAL_RATE, self._loop.time)
        self._unwritten_refusals: dict[str, tuple[int, Event]] = {}
        """By sender: the number of refusals since its last record, and the latest of them."""
        self.sink = None if open_sink is None else open_sink(self)

    def check(self) -> None:
        """Call it before something is done that has to be recorded. Raises Unavailable, in the mode `required`."""
        if self.required and self._failing:
            raise not_written(may_have_run=False)

    def write(self, event: Event) -> Awaitable[bool] | None:
        """Record what happened. Returns what to wait for, in the mode `required`: whether it is written now."""
        _clean(event)
        self._say(event)
        if self.sink is None:
            return None
        written = self._loop.create_future() if self.required else None
        if self.waiting >= MOST_WAITING or self._waiting_bytes >= MOST_WAITING_BYTES:
            self.lost += 1
            self.failures += 1
            if written is not None:
                written.set_result(False)
            return written
        self.waiting += 1
        self._gathered.append((event, written))
        if len(self._gathered) == 1:
            self.sink.later(self._leave)
        return written

    def _leave(self) -> None:
        """Make the records of a round of the loop, and send them: one after the other they cost half as much CPU."""
        assert self.sink is not None
        gathered, self._gathered = self._gathered, []
        at, batches = datetime.now(UTC).isoformat(timespec="milliseconds"), list[Batch]()
        for event, waiter in gathered:
            self._hash(event)
            record = _described(event, at, content=self.content)
            if self.lost:
                record["lost"] = self.lost
            self._number = number = self._number + 1
            record["writer"], record["seq"], record["prev"] = self.writer, number, self._prev
            written = exact_json.written(record)
            self._prev = sha256(written)
            subject, size = audit(event.office or "", event.kind), len(written) + 1
            if not batches or batches[-1].size + size > self.sink.most_bytes:
                batches.append(Batch(number, subject, self._loop.time()))
            batch = batches[-1]
            if batch.subject != subject:
                batch.subject = AUDIT_OF_SEVERAL
            batch.records.append(written)
            batch.size += size
            if waiter is not None:
                batch.waiters.append(waiter)
            self._waiting_bytes += size
        for batch in batches:
            self._batches[batch.number] = batch
            self.sink.send(batch)

    def write_refusal(self, event: Event, office: str | None) -> None:
        """Record a refusal, if its sender is within `REFUSAL_RATE`. The sender's next record says how many are missing.

        Args:
            office: the sender's own office; the one in the request may be any. A sender is an office and a subject.
        """
        sender = f"{office or ''}\n{event.by or event.subject or ''}"
        _clean(event)
        self._hash(event)
        self._unwritten_refusals[sender] = self._unwritten_refusals.get(sender, (0, event))[0] + 1, event
        self._write_latest_refusal(sender)

    def _write_latest_refusal(self, sender: str, *, at_the_end: bool = False) -> None:
        if self._refusal_rates.take(sender) > 0 and not at_the_end:
            return
        count, event = self._unwritten_refusals.pop(sender)
        if count > 1:
            event.why = f"{count - 1} refusals before it are not recorded; {event.why}"
        self.write(event)

    def _hash(self, event: Event) -> None:
        if event.arguments is None or event.args_sha256 is not None:
            return
        arguments = exact_json.written(event.arguments, sort_keys=True)
        event.args_sha256 = sha256(arguments)
        if not self.content:
            event.arguments = None
        else:
            event.arguments = _TOO_LONG if len(arguments) > LONGEST_CONTENT else redacted(event.arguments)

    def taken(self, number: int) -> None:
        """`number`: the batch's."""
        if (batch := self._batches.pop(number, None)) is None:
            return
        self.written += len(batch.records)
        self.waiting -= len(batch.records)
        self._waiting_bytes -= batch.size
        if batch.failed:
            self._failing -= 1
            if not self._failing:
                self.problem = None
                self.log.warning("the audit trail is written again")
        batch.answer(is_written=True)

    def refused(self, number: int, why: str) -> None:
        if (batch := self._batches.get(number)) is None or batch.failed:
            return
        batch.failed = True
        self._failing += 1
        self.problem = why
        self.failures += len(batch.records)
        if self._failing == 1:
            self.log.error("the audit trail cannot be written: %s", why)
        batch.answer(is_written=False)

    async def run(self) -> None:
        """Send records again that the sink did not take, and record delayed refusals, until cancelled."""
        while True:
            await asyncio.sleep(ANSWER_S / 2)
            for sender in list(self._unwritten_refusals):
                self._write_latest_refusal(sender)
            overdue = self._loop.time() - ANSWER_S
            for batch in list(self._batches.values()):
                if batch.sent_at <= overdue:
                    self.refused(batch.number, "no answer in time")
            self.send_again(overdue)

    def send_again(self, sent_by: float = inf, *, everything: bool = False) -> None:
        """Send again the first messages that were last sent before this loop time; `run` sends the others."""
        left = inf if everything else SENT_AGAIN
        for batch in list(self._batches.values()):
            if self.sink is not None and batch.sent_at <= sent_by and left > 0:
                left -= len(batch.records)
                batch.sent_at = self._loop.time()
                self.sink.send(batch)

    async def close(self, within: float = ANSWER_S) -> None:
        """Wait until the sink has all records, for so long at most."""
        for sender in list(self._unwritten_refusals):
            self._write_latest_refusal(sender, at_the_end=True)
        if self.sink is None:
            return
        ends = self._loop.time() + within
        if self._failing:
            self.send_again(everything=True)
        while self.waiting and self._loop.time() < ends:  # noqa: ASYNC110 -- once, at the end
            await asyncio.sleep(0.02)
        if self.waiting:
            self.log.error("records of the audit trail are lost: %d", self.waiting)
        self.sink.close()

    def _say(self, event: Event) -> None:
        is_elsewhere = event.source is not None  # the Computer has said it, perhaps in this very log
        level = logging.DEBUG if event.kind == "call" or is_elsewhere else logging.INFO
        if not self.log.isEnabledFor(level):
            return
        record = _described(event, "", content=False)
        name = "refused" if event.kind == "refusal" else "detail"
        shown = {name: record.get(name) for name in _LOGGED} | {"member": event.name, name: event.event}
        self.log.log(level, event.kind, extra={name: value for name, value in shown.items() if value is not None})


def _described(event: Event, at: str, *, content: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "at": at,
        "kind": event.kind,
        "subject": event.subject,
        "office": event.office,
        "role": event.role,
        "name": event.name,
        "computer": event.computer,
        "tool": event.tool,
        "outcome": event.outcome,
        "ms": None if event.seconds is None else int(10_000 * event.seconds + 0.5) / 10,
        "req_id": event.req_id,
        "args_sha256": event.args_sha256,
    }
    if event.trace_id is not None:
        record["trace_id"] = f"{event.trace_id:032x}"
    for name in _WHERE_KNOWN:
        if (value := getattr(event, name)) is not None:
            record[name] = value
    if content and event.kind == "call":
        record["arguments"] = event.arguments
        record["result"] = _result(event.result)
    return record


_WHERE_KNOWN: Final = ("by", "address", "why", "event", "request_bytes", "reply_bytes", "source")
FIELDS: Final = tuple(_described(Event("call", "ok"), "", content=False))
"""What each record has, `null` where it is not known; the other fields are left out then."""
_LOGGED: Final = (
    *("subject", "office", "role", "computer", "tool", "outcome", "ms", "req_id", "trace_id", "by", "address", "why"),
)


async def when_written(written: Awaitable[bool], answer: Answer) -> Answer:
    """The answer, or an error if the record (`Trail.write`) was not written."""
    return answer if await written else failed(not_written().body())


def not_written(*, may_have_run: bool = True) -> Unavailable:
    return Unavailable(NOT_WRITTEN, details={"may_have_run": may_have_run, "audit": True})


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def in_records(field: str, value: object) -> str | None:
    """How the text of an event stands in its record: cut, and printable."""
    if value is None:
        return None
    longest = LONGEST_NAME if field in _NAMES else LONGEST_TEXT
    text = str(value)
    cut = text[:longest]
    if not (cut.isascii() and cut.isprintable()):
        cut = printable(cut)
    if len(text) > longest or len(cut.encode()) > longest:
        cut = f"{cut.encode()[: longest - 3].decode(errors='ignore')}…"
    return cut


_TEXTS: Final = ("subject", "by", "office", "role", "name", "computer", "tool", "req_id", "event", "why")
_NAMES: Final = ("office", "name", "computer")
_texts: Final = attrgetter(*_TEXTS)


def _clean(event: Event) -> None:
    """Cut what a peer says, and make it printable. Nearly always there is nothing to do."""
    try:
        all_of_it = "".join(filter(None, _texts(event)))
    except TypeError:  # something else than a text
        all_of_it = "\n"
    if len(all_of_it) <= LONGEST_TEXT and all_of_it.isascii() and all_of_it.isprintable():
        return
    for name in _TEXTS:
        setattr(event, name, in_records(name, getattr(event, name)))


def _result(body: bytes | None) -> Any:
    if body is None:
        return None
    try:
        return redacted(orjson.loads(body)) if len(body) <= LONGEST_CONTENT else _TOO_LONG
    except orjson.JSONDecodeError:
        return None


_TOO_LONG: Final = "<too long>"
