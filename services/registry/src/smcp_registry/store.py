"""The JetStream buckets: made where they are missing, changed where they are configured otherwise.

| bucket | holds | expires |
|---|---|---|
| `members` | the record of each seat: an office's Agent, a Computer's name | never; tombstones are purged |
| `leases` | one key per owner process | after a lease |
| `moving` | one key per seat that is kept for who moves | after its key's own time (`SMCP_MOVE_S`) |

Writes to `members` and `leases` are compare-and-set on a key's revision: 0 where the key has none. A read may miss the
newest write (another replica may answer it); a write that was decided on an old read fails with `Conflict`.

The revisions of `members` start at the time in microseconds: a new bucket goes on above the lost one's (ADR 0026).
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import nats.errors
from nats.js import JetStreamContext, api
from nats.js import errors as js_errors
from nats.js.kv import KeyValue
from pydantic import ValidationError

from smcp_bus.bus import OWN_LAG_S, describe, raise_if_cancelled
from smcp_bus.nats.bus import Bus
from smcp_proto.errors import Unavailable
from smcp_registry.member_records import MemberRecord
from smcp_service.lifecycle import Failure

_log = logging.getLogger("smcp_registry.store")

T = TypeVar("T")

MEMBERS: Final = "members"
LEASES: Final = "leases"
MOVING: Final = "moving"
ANSWER_S: Final = 2.0
"""How long the store may take for one read or write (seconds): a stream without quorum does not answer at all."""
ATTEMPTS: Final = 8
"""How often a decision is tried: others may write meanwhile, or this process may be suspended."""
AT_ONCE: Final = 32
"""Decisions of one kind, requests to one bucket, or questions to processes, that are made at the same time."""
HISTORY: Final = 64
"""Changes of one seat that are kept for the announcer, should all registries be away. It is the most a bucket keeps."""
NO_ANSWER: Final = "the registry's store does not answer now"
START_S: Final = 30.0
"""How long the store may take to be usable when a registry starts (seconds): a new cluster elects many leaders."""
PAUSE_S: Final = 0.25
"""Between two requests to JetStream while nobody answers: leaders are elected, or a node reads its file again."""
NAME_IN_USE: Final = 10058
"""JetStream's error code for a stream that exists with another configuration."""
NO_PEERS: Final = 10005
"""The same where too few nodes of the cluster are there now."""


class StoreUnusable(Failure):
    """The registry cannot start on this NATS; the message says what is wrong and what to do."""


class Conflict(Exception):
    """The key has another revision than the one that was decided on: nothing was written, or just before (`_asked`)."""


@dataclass(frozen=True, slots=True)
class Stored:
    value: bytes | None
    """None where nothing stands under the key."""
    revision: int


class Bucket:
    """One bucket. All methods raise `Unavailable` where JetStream does not answer within 2 s, and without a connection.
    It repeats a request during which this process was suspended, up to 7 times.

    At most 32 requests are sent at a time, and their 2 s begin then. After one without an answer those that wait fail.
    """

    def __init__(self, name: str, js: JetStreamContext, kv: KeyValue, bus: Bus) -> None:
        self.name = name
        self.stream = f"KV_{name}"
        self._js = js
        self._kv = kv
        self._bus = bus
        self.written = 0
        """The newest revision that this process wrote."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._unanswered = 0
        """Requests that nobody answered in time, or nobody took."""

    async def read(self, key: str) -> Stored:
        try:
            entry = await self._asked(lambda: self._kv.get(key))
        except js_errors.KeyNotFoundError as error:
            revision = error.entry.revision if error.entry is not None else 0
            return Stored(None, revision or 0)
        # nats-py gives the server's expiry marker as an entry without a value
        return Stored(entry.value or None, entry.revision or 0)

    async def write(self, key: str, value: bytes, *, last: int) -> int:
        """Raises Conflict, and Unavailable: where it may have been written, `details.may_have_run` is true."""
        try:
            revision = await self._asked(lambda: self._kv.update(key, value, last=last), writing=True)
        except js_errors.KeyWrongLastSequenceError as error:
            raise Conflict(key) from error
        self.written = max(self.written, revision)
        return revision

    async def mark(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Set the key, whatever its revision is. It expires after `ttl_s`, rounded up to whole seconds, at least 1."""
        subject, ttl = self.subject(key), max(1, math.ceil(ttl_s))
        await self._asked(lambda: self._js.publish(subject, value, stream=self.stream, msg_ttl=ttl), writing=True)

    async def purge(self, key: str, *, upto: int) -> None:
        """Remove the revisions of a key up to and with `upto`; a newer one stays."""
        await self._asked(lambda: self._js.purge_stream(self.stream, subject=self.subject(key), seq=upto + 1))

    def subject(self, key: str) -> str:
        return f"$KV.{self.name}.{key}"

    async def _asked(self, ask: Callable[[], Awaitable[T]], *, writing: bool = False, tries: int = ATTEMPTS) -> T:
        unanswered, ends = self._unanswered, math.inf
        try:
            async with self._slots:
                if self._unanswered != unanswered:
                    raise Unavailable(NO_ANSWER)
                async with asyncio.timeout(ANSWER_S) as limit:
                    ends = limit.when() or math.inf
                    answer = await self._taken(ask, ends)
            raise_if_cancelled()
        except (js_errors.KeyNotFoundError, js_errors.KeyWrongLastSequenceError):
            raise
        except (nats.errors.Error, TimeoutError) as error:
            suspended = isinstance(error, TimeoutError) and asyncio.get_running_loop().time() > ends + OWN_LAG_S
            if suspended and tries > 1:  # what was written is a Conflict
                return await self._asked(ask, writing=writing, tries=tries - 1)
            self._unanswered += isinstance(error, TimeoutError) or _not_taken(error)
            _log.warning("the bucket %s does not answer: %s", self.name, _reason(error))
            details = {"may_have_run": True} if writing and not _not_taken(error) else None
            raise Unavailable(NO_ANSWER, details=details) from error
        else:
            return answer

    async def _taken(self, ask: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Repeats what nobody took, so that nobody can have carried it out: while a nats-server reads its configuration
        again, a fiftieth of the reads has no responder (measured with 2.15)."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._bus.connected:
                # nats-py would keep the write and send it when the connection is back, long after our answer
                raise Unavailable("the registry is not connected to NATS")
            try:
                return await ask()
            except nats.errors.Error as error:
                if not _not_taken(error) or loop.time() + PAUSE_S >= deadline:
                    raise
            await asyncio.sleep(PAUSE_S)


def _not_taken(error: Exception) -> bool:
    """Whether there was no responder; of a request to JetStream's API nats-py says that as an error without a code."""
    if isinstance(error, js_errors.ServiceUnavailableError):
        return error.err_code is None
    return isinstance(error, js_errors.NoStreamResponseError | nats.errors.NoRespondersError)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "nobody takes the request" if _not_taken(error) else getattr(error, "description", None) or describe(error)


@dataclass(frozen=True, slots=True)
class StoredMember:
    record: MemberRecord | None
    """None: the seat can be claimed."""
    revision: int

    @property
    def tenure(self) -> int | None:
        return None if self.record is None else self.record.tenure


def parse_record(value: bytes | None, *, key: str) -> MemberRecord | None:
    """None where there is no record, or none that can be read (which is logged: its seat can be claimed)."""
    if not value:
        return None
    try:
        return MemberRecord.model_validate_json(value)
    except ValidationError:
        _log.error("the record of %s cannot be read", key)
        return None


async def read_member(bucket: Bucket, key: str) -> StoredMember:
    stored = await bucket.read(key)
    return StoredMember(parse_record(stored.value, key=key), stored.revision)


async def write_member(bucket: Bucket, key: str, record: MemberRecord, *, last: int) -> int:
    """Raises as `Bucket.write`."""
    return await bucket.write(key, record.model_dump_json(exclude_none=True).encode(), last=last)


@dataclass(frozen=True, slots=True)
class Store:
    members: Bucket
    leases: Bucket
    moving: Bucket

    async def is_kept(self, key: str, record: MemberRecord) -> bool:
        return record.moving and (await self.moving.read(key)).value is not None


async def ask_jetstream(what: str, ask: Callable[[], Awaitable[T]], *, deadline: float) -> T:
    """Return what `ask` returns; repeat it while a cluster still elects its leaders.

    It is idempotent: a request without an answer may have been carried out. Raises StoreUnusable, which says `what`
    fails: at `deadline` (loop time), or at once where waiting does not help.
    """
    loop, logged = asyncio.get_running_loop(), ""
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                answer = await ask()
        except (nats.errors.Error, TimeoutError) as error:
            reason, starting = _reason(error), True
            if isinstance(error, js_errors.APIError):
                # A bucket that another registry is making is not found yet, and a new leader does not know all nodes.
                unready = js_errors.NotFoundError | js_errors.ServiceUnavailableError
                starting = isinstance(error, unready) or error.err_code == NO_PEERS
            if not starting or loop.time() + PAUSE_S >= deadline:
                raise StoreUnusable(f"{what}: {reason}") from error
            if reason != logged:
                _log.warning("%s: %s; retrying", what, reason)
            logged = reason
        else:
            raise_if_cancelled()
            return answer
        await asyncio.sleep(PAUSE_S)


async def open_store(
    bus: Bus,
    js: JetStreamContext,
    *,
    lease_s: float,
    replicas: int,
    audit: api.StreamConfig | None = None,
    start_s: float = START_S,
) -> Store:
    """Make the buckets, and the stream of the audit trail, where they are missing; give buckets that are there the
    present configuration. Times are in seconds.

    Raises StoreUnusable: JetStream does not answer, or cannot keep so many replicas.
    """
    deadline = asyncio.get_running_loop().time() + start_s
    unanswered = "JetStream does not answer (is it enabled, has it a leader, and may this credential use $JS.API.>?)"
    account = await ask_jetstream(unanswered, js.account_info, deadline=deadline)
    if not account.api.level:
        raise StoreUnusable("this nats-server is too old: the registry needs 2.11 or newer")
    buckets = {}
    for name, plan in zip((LEASES, MOVING, MEMBERS), _plans(lease_s, replicas), strict=True):
        what = f"the bucket {name} cannot be opened with SMCP_KV_REPLICAS={replicas}"
        opened = await ask_jetstream(what, partial(_open, js, name, plan), deadline=deadline)
        buckets[name] = Bucket(name, js, opened, bus)
    if audit is not None:
        unmade = "the stream of the audit trail, which may grow to SMCP_AUDIT_MAX_BYTES, cannot be made"
        await ask_jetstream(unmade, partial(make_stream, js, audit), deadline=deadline)
    return Store(**buckets)


async def make_missing(
    js: JetStreamContext, *, lease_s: float, replicas: int, audit: api.StreamConfig | None = None
) -> None:
    for plan in (*_plans(lease_s, replicas), *([] if audit is None else [audit])):
        await make_stream(js, plan)


def _plans(lease_s: float, replicas: int) -> tuple[api.StreamConfig, api.StreamConfig, api.StreamConfig]:
    leases, moving, members = (_plan(bucket, replicas) for bucket in (LEASES, MOVING, MEMBERS))
    # the server takes whole seconds from 1 for its markers; they only have to outlive the expiry
    marker_s = max(1.0, float(round(lease_s)))
    leases = leases.evolve(max_age=lease_s, subject_delete_marker_ttl=marker_s)
    # microseconds: twice that is exact in a double until 2112
    return leases, moving, members.evolve(max_msgs_per_subject=HISTORY, first_seq=time.time_ns() // 1000)


def _plan(bucket: str, replicas: int) -> api.StreamConfig:
    # A stream as nats-py makes one for a bucket, but for its first sequence: that cannot be said of a bucket there.
    return api.StreamConfig(
        name=f"KV_{bucket}",
        subjects=[f"$KV.{bucket}.>"],
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        deny_delete=True,
        discard=api.DiscardPolicy.NEW,
        max_msgs_per_subject=1,
        num_replicas=replicas,
        storage=api.StorageType.FILE,
    )


async def make_stream(js: JetStreamContext, plan: api.StreamConfig) -> bool:
    """Where it is missing; one that is there stays as it is. False: that differs from the plan."""
    try:
        await js.add_stream(plan)
    except js_errors.BadRequestError as error:
        if error.err_code != NAME_IN_USE:
            raise
        return False
    return True


async def _open(js: JetStreamContext, bucket: str, plan: api.StreamConfig) -> KeyValue:
    if not await make_stream(js, plan):
        found = (await js.stream_info(plan.name or "")).config
        replicas = max(found.num_replicas or 1, plan.num_replicas or 1)  # on no fewer servers than before
        await js.update_stream(plan.evolve(first_seq=None, num_replicas=replicas))
    return await js.key_value(bucket)
