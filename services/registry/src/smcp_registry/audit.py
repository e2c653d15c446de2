"""What the registry records (`smcp_bus.audit`): joins, leaves, refusals and approvals of Computers on NATS, and the
leaves that it decides about itself. What a gateway asks for its clients, that gateway records: it knows whose key or
token it was. And the stream of all records: how it is made, and what operators read of it (`read_records`).
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import nats.errors
import orjson
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from smcp_bus.audit import STREAM, Event, Kind, Sink, Trail, not_written, when_written
from smcp_bus.bus import raise_if_cancelled
from smcp_bus.dispatch import JOIN, LEAVE, Answer, Call
from smcp_bus.headers import CLAIM, PROOF
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_contract import APPROVAL, Approval, Claim, Nothing, Records, RecordsQuestion, StoredRecord
from smcp_bus.subjects import AUDIT_ALL, AUDIT_OF_SEVERAL
from smcp_bus.tracing import trace_id_of
from smcp_proto.errors import NotFound, Unavailable
from smcp_proto.schemas.rooms import RESTARTS
from smcp_registry.leases import Leases
from smcp_registry.member_records import MemberRecord
from smcp_registry.members_view import MembersView
from smcp_registry.settings import RegistrySettings
from smcp_registry.store import ANSWER_S

PAGE: Final = 600
"""Messages in a page at most: that many usual ones have `PAGE_BYTES`."""
PAGE_BYTES: Final = 448 * 1024
"""Of a page as it is sent, which has to be one message: an operator may not fetch the parts of a larger answer."""

ACK_FIELDS: Final = 7
"""Tokens of a message's reply subject after `$JS.ACK`; newer servers put domain and account before them (ADR-15)."""
LARGEST: Final = 2 * Sink.most_bytes
"""More than a message has (bytes): a stream that is so near to its limit counts as full."""


@dataclass(eq=False, repr=False)
class Audit:
    trail: Trail
    view: MembersView
    leases: Leases

    def concluded(
        self, call: Call, answer: Answer | None, seconds: float, size: int | None
    ) -> Awaitable[Answer] | None:
        """See `smcp_bus.dispatch.Conclude`."""
        name, caller = call.row.event, call.caller
        if answer is None or not name.startswith("server:") or name == APPROVAL.event:
            return None
        if answer.error is None and name not in (JOIN, LEAVE):
            return None
        if caller.role != "computer" or (credential := self._host(call)) is None:
            return None
        if answer.error is not None:
            event = Event("refusal", str(answer.error), event=name, why=orjson.loads(answer.body).get("message"))
        elif name == LEAVE and call.payload.get(RESTARTS) is True:
            return None  # its seat is kept
        else:
            said = orjson.loads(answer.body)
            outcome = "unchanged" if said.get("unchanged") else "moved" if said.get("taken_up") else "ok"
            event = Event("join" if name == JOIN else "leave", outcome)
        event.office, event.role, event.name = caller.office, caller.role, caller.name
        event.subject = credential
        event.seconds, event.req_id, event.trace_id = seconds, call.req_id, trace_id_of(call)
        event.request_bytes, event.reply_bytes = size, len(answer.body)
        if event.kind == "refusal":
            self.trail.write_refusal(event, caller.office)
            return None
        written = self.trail.write(event)
        return None if written is None or event.kind != "join" else when_written(written, answer)

    def seat_changed(self, kind: Kind, record: MemberRecord, outcome: str) -> None:
        """The registry took a seat away: its owner is gone (`leave`, `expired`), or a move did not end (`not_back`).
        Or it gave the seat back to an owner that lives (`join`, `back`)."""
        self.trail.write(
            Event(kind, outcome, office=record.office, role=record.role, name=record.name, subject=record.credential)
        )

    async def approval(self, request: Approval, call: Call) -> Nothing:
        """A Computer tells what was answered when it asked whether a tool may run; where, its subject says."""
        office, _, computer = call.caller.seat
        if self.trail.sink is None:
            raise Unavailable("the registries record nothing (SMCP_AUDIT)")
        self.trail.check()
        fields = request.model_dump(exclude={"writer", "seq", "trace_id"})
        event = Event("approval", role="agent", office=office, computer=computer, **fields)
        event.source = f"{request.writer} {request.seq}" if request.writer else None  # an older Computer says none
        event.trace_id = None if request.trace_id is None else int(request.trace_id, 16)
        if (written := self.trail.write(event)) is not None and not await written:
            raise not_written()
        return Nothing()

    def _host(self, call: Call) -> str | None:
        """The credential of the Computer that asks; None where it is a gateway that asks for one of its clients."""
        try:
            claim = Claim.model_validate_json(call.headers[CLAIM])
            owner = claim.credential, claim.process
        except KeyError:
            if (member := self.view.member(*call.caller.seat)) is None:
                return None
            owner = member.record.credential, member.record.process
        except ValidationError:
            return None
        return None if self.leases.is_gateway(*owner, call.headers.get(PROOF)) else owner[0]


def audit_plan(settings: RegistrySettings) -> api.StreamConfig | None:
    """The stream of the audit trail; None: there is none. One that is there is left as it is."""
    if settings.audit == "off" or settings.audit_file is not None:
        return None
    required = settings.audit == "required"
    return api.StreamConfig(
        name=STREAM,
        subjects=[AUDIT_ALL],
        max_age=settings.audit_keep_days * 86_400,
        max_bytes=settings.audit_max_bytes,
        discard=api.DiscardPolicy.NEW if required else api.DiscardPolicy.OLD,
        num_replicas=settings.kv_replicas,
        storage=api.StorageType.FILE,
        allow_direct=True,
    )


async def read_records(request: RecordsQuestion, call: Call, *, bus: Bus, js: JetStreamContext) -> Records:
    """For operators, who do not reach JetStream: a page of the stream."""
    messages: list[tuple[int, str, bytes]] = []
    try:
        async with asyncio.timeout(ANSWER_S):
            info = await js.stream_info(STREAM)
            state = info.state
            if state.last_seq > request.after:
                messages = await _page(bus, js, request)
        raise_if_cancelled()
    except NotFoundError:
        raise NotFound("there is no audit trail in NATS (it needs SMCP_AUDIT=on without SMCP_AUDIT_FILE)") from None
    except (nats.errors.Error, TimeoutError) as error:
        raise Unavailable("the audit trail does not answer now") from error
    records: list[StoredRecord] = []
    size = 0
    for seq, subject, body in messages:
        size += len(body) * 4 // 3 + len(subject) + 64  # about its bytes in the page
        if records and size > PAGE_BYTES:
            break
        records.append(StoredRecord(seq=seq, subject=subject, raw=b64encode(body)))
    return Records(
        records=records,
        first=state.first_seq,
        last=state.last_seq,
        deleted=state.num_deleted or 0,
        may_expire=_may_expire(info),
    )


def _may_expire(info: api.StreamInfo) -> bool:
    """Whether messages can have expired: the stream is older than the age that it keeps, or full."""
    config, age = info.config, datetime.now(UTC) - (info.created or datetime.min.replace(tzinfo=UTC))
    drops_oldest = config.discard != api.DiscardPolicy.NEW and (config.max_bytes or 0) > 0
    is_full = drops_oldest and info.state.bytes + LARGEST >= (config.max_bytes or 0)
    return is_full or 0 < (config.max_age or 0) <= age.total_seconds()


async def _page(bus: Bus, js: JetStreamContext, request: RecordsQuestion) -> list[tuple[int, str, bytes]]:
    """Messages, each as its number, subject and body. nats-py's `fetch` costs four times as much: a task for each."""
    by_time = bool(request.since) and not request.after
    plan = api.ConsumerConfig(
        deliver_policy=api.DeliverPolicy.BY_START_TIME if by_time else api.DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=None if by_time else request.after + 1,
        opt_start_time=datetime.fromtimestamp(request.since, UTC) if by_time else None,
        filter_subjects=None if request.subject in (None, AUDIT_ALL) else [request.subject, AUDIT_OF_SEVERAL],
        ack_policy=api.AckPolicy.NONE,
        num_replicas=1,
        mem_storage=True,
    )
    consumer = await js.add_consumer(STREAM, plan)
    found, wanted, complete = [], min(PAGE, consumer.num_pending or 0), asyncio.Event()

    def received(subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        if fields := reply.split(b".")[2:]:  # without a reply subject: why there are fewer
            seq = int(fields[3] if len(fields) == ACK_FIELDS else fields[5])
            found.append((seq, subject.decode(), body))
        if not fields or len(found) == wanted:
            complete.set()

    inbox = f"{bus.inbox_prefix}.{bus.process}.records.{consumer.name}"
    number = bus.attach(inbox, "", received)
    try:
        if wanted:
            most = {"batch": wanted, "max_bytes": 2 * bus.max_payload, "no_wait": True}
            bus.send(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer.name}", inbox, b"", orjson.dumps(most))
            await complete.wait()
        return found
    finally:
        bus.unsubscribe_at_server(number)
        bus.detach(number)
        with suppress(nats.errors.Error):
            await js.delete_consumer(STREAM, consumer.name)
