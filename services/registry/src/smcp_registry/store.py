"""The two JetStream buckets: `members` (who has which place) and `leases` (which owner processes live).

Every write is a compare-and-set on a key's revision: 0 where the key has none. A read makes no promise to see the
newest write (another replica may answer it); a write that was decided on an old read is refused with `Conflict`, to be
read and decided again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.js import JetStreamContext, api
from nats.js.errors import (
    APIError,
    BadRequestError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
    ServiceUnavailableError,
)
from nats.js.kv import KeyValue
from pydantic import ValidationError

from smcp_bus.bus import Bus
from smcp_bus.cancellation import raise_if_cancelled
from smcp_bus.errors import BusError
from smcp_proto.errors import Unavailable
from smcp_registry.clock import StoreClock
from smcp_registry.records import MemberRecord
from smcp_registry.wording import said
from smcp_service.lifecycle import Failure

_log = logging.getLogger("smcp_registry.store")

MEMBERS: Final = "members"
LEASES: Final = "leases"
ANSWER_S: Final = 2.0
"""How long the store may take for one read or write (seconds): a stream without quorum does not answer at all."""
AT_A_TIME: Final = 64
"""Reads and writes of a bucket that are under way; more wait. When hundreds join at once, the time that the store has
is not used up by what this process itself has to do."""
TURN_S: Final = 6.0
"""How long one waits for its turn (seconds)."""


class Conflict(Exception):
    """The key has another revision than the one that was decided on. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What stands under a key. `value` is None where nothing does, also after a lease ran out; a write then goes
    over `revision`, which is the marker's while one stands."""

    value: bytes | None
    revision: int


class Bucket:
    """One bucket, on a connection that may be down for now.

    All methods raise `Unavailable` where JetStream does not answer, or not within 2 s (without quorum), and where too
    many wait for it already.
    """

    def __init__(self, name: str, js: JetStreamContext, kv: KeyValue, bus: Bus) -> None:
        self.name = name
        self.stream = f"KV_{name}"
        self._js = js
        self._kv = kv
        self._bus = bus
        self._turns = asyncio.Semaphore(AT_A_TIME)
        self._silent = 0.0
        """Loop time at which the store was last found not to answer; 0 where it has answered since."""

    async def read(self, key: str) -> Stored:
        """What stands under a key. Without a value the revision is that of the marker that deleted it, or 0."""
        try:
            async with self._answering():
                entry = await self._kv.get(key)
        except KeyNotFoundError as error:
            revision = error.entry.revision if error.entry is not None else 0
            return Stored(None, revision or 0)
        # nats-py gives the server's expiry marker as an entry without a value
        return Stored(entry.value or None, entry.revision or 0)

    async def write(self, key: str, value: bytes, *, last: int) -> int:
        """Set the key if its revision is `last`, and return the new one.

        Raises:
            Conflict: it has another revision.
            Unavailable: no answer. Where it may have been written, `details.may_have_run` is true.
        """
        try:
            async with self._answering(writing=True):
                return await self._kv.update(key, value, last=last)
        except KeyWrongLastSequenceError as error:
            raise Conflict(key) from error

    async def purge(self, key: str, *, upto: int) -> None:
        """Remove the revisions of a key up to and with `upto`; a newer one stays."""
        async with self._answering():
            await self._js.purge_stream(self.stream, subject=self.subject(key), seq=upto + 1)

    def subject(self, key: str) -> str:
        """The subject of a key in the bucket's own stream."""
        return f"$KV.{self.name}.{key}"

    @asynccontextmanager
    async def _answering(self, *, writing: bool = False) -> AsyncIterator[None]:
        if not self._bus.connected:
            # nats-py would keep the write and send it when the connection is back, long after our answer
            raise Unavailable("the registry is not connected to NATS")
        await self._turn()
        try:
            async with asyncio.timeout(ANSWER_S):
                yield
            self._silent = 0.0
            raise_if_cancelled()
        except (KeyNotFoundError, KeyWrongLastSequenceError):
            self._silent = 0.0
            raise
        except (nats.errors.Error, TimeoutError) as error:
            self._silent = asyncio.get_running_loop().time()
            _log.warning("the bucket %s does not answer: %s", self.name, said(error))
            # where nobody took the write, nobody can have carried it out
            written = writing and not isinstance(error, NoStreamResponseError | nats.errors.NoRespondersError)
            details = {"may_have_run": True} if written else None
            raise Unavailable("the registry's store does not answer now", details=details) from error
        finally:
            self._turns.release()

    async def _turn(self) -> None:
        asked = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise Unavailable("the registry's store has too much to do now") from None
        if self._silent > asked:  # as the others found out meanwhile
            self._turns.release()
            raise Unavailable("the registry's store does not answer now")


@dataclass(frozen=True, slots=True)
class Store:
    """The two buckets, and the time by which all registries agree."""

    members: Bucket
    leases: Bucket
    clock: StoreClock


@dataclass(frozen=True, slots=True)
class StoredMember:
    """The record of a place, and the revision that a write over it must name; None: it can be claimed."""

    record: MemberRecord | None
    revision: int


def parse_record(value: bytes | None, *, key: str) -> MemberRecord | None:
    """The record; None where there is none, or none that can be read (which is logged: its place can be claimed)."""
    if not value:
        return None
    try:
        return MemberRecord.model_validate_json(value)
    except ValidationError:
        _log.error("the record of %s cannot be read", key)
        return None


async def read_member(bucket: Bucket, key: str) -> StoredMember:
    """Read the record of a place. Raises Unavailable: the store does not answer."""
    stored = await bucket.read(key)
    return StoredMember(parse_record(stored.value, key=key), stored.revision)


async def write_member(bucket: Bucket, key: str, record: MemberRecord, *, last: int) -> int:
    """Write the record of a place over revision `last`, and return the new one.

    Raises:
        Conflict: somebody else wrote meanwhile.
        Unavailable: the store does not answer; it may have been written.
    """
    return await bucket.write(key, record.model_dump_json(exclude_none=True).encode(), last=last)


HISTORY: Final = 64
"""Changes of one place that are kept for the announcer, should all registries be away: with 1, a leave or an enter
would be lost. It is the most that a bucket can keep."""
START_S: Final = 10.0
"""How long JetStream may take to be there when a registry starts: a cluster elects a leader first."""
ABSENT_S: Final = 2.0
"""The same where nobody serves JetStream at all, so that it is most likely not enabled."""
PAUSE_S: Final = 0.25
DUPLICATES_S: Final = 120.0
"""How long JetStream remembers a message's id, where entries live as long; nobody gives ids here."""
NAME_IN_USE: Final = 10058
"""The code of JetStream's error for a stream that exists with another configuration."""
NO_REPLICAS: Final = 10074
"""The same for more than one replica where NATS is no cluster."""
REVISIONS_PER_S: Final = 1_000_000
"""By which the time (unix seconds, UTC) becomes a first revision: more than any bucket has changes, and twice that is
exact in a double still."""


class StoreUnusable(Failure):
    """The registry cannot start on this NATS; the message says what is wrong and what to do."""


class StoreMisfit(StoreUnusable):
    """NATS is well, but what is configured does not fit what is there."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class _Plan:
    bucket: str
    history: int
    ttl: float | None
    marker_ttl: float | None
    replicas: int
    description: str
    goes_on: bool = False
    """Whether its revisions are greater than those of all buckets of its name that were made before."""


async def open_store(
    bus: Bus, js: JetStreamContext, *, lease_s: float, replicas: int, start_s: float = START_S
) -> Store:
    """Make the buckets that are missing (any number of registries may do so at once) and check those that are there.

    Args:
        lease_s: how long a lease lives without being renewed: the TTL of `leases`, in seconds.
        replicas: on how many servers the buckets are kept; 1 unless NATS is a cluster.
        start_s: how long JetStream may take to answer, in seconds.

    Raises:
        StoreMisfit: a bucket exists with another configuration, or this NATS cannot keep so many replicas.
        StoreUnusable: JetStream is not enabled, or does not answer.
    """
    account = await _wait_for_jetstream(js, start_s)
    if not account.api.level:
        raise StoreUnusable("this nats-server is too old: the registry needs 2.11 or newer")
    members, leases = _plans(lease_s, replicas)
    clock = StoreClock(bus, f"KV_{LEASES}")
    kept_leases = await _open(js, leases, start_s, clock.now)
    await _know_the_time(clock, start_s)
    return Store(
        members=Bucket(MEMBERS, js, await _open(js, members, start_s, clock.now), bus),
        leases=Bucket(LEASES, js, kept_leases, bus),
        clock=clock,
    )


async def make_missing(js: JetStreamContext, *, lease_s: float, replicas: int, now: Callable[[], float]) -> None:
    """Make the buckets that are missing, as `open_store` does; those that are there are left as they are.

    Args:
        now: unix seconds (UTC), by nats-server's clock.

    Raises:
        nats.errors.Error, TimeoutError: JetStream does not answer, or cannot make them.
    """
    for plan in _plans(lease_s, replicas):
        try:
            await js.add_stream(_stream(plan, now))
        except BadRequestError as error:
            if error.err_code != NAME_IN_USE:
                raise


def _plans(lease_s: float, replicas: int) -> tuple[_Plan, _Plan]:
    """Of `members` and of `leases`."""
    # the server takes whole seconds from 1 for its markers; they only have to outlive the expiry
    marker_s = max(1.0, float(round(lease_s)))
    return (
        _Plan(MEMBERS, HISTORY, None, None, replicas, "A2C-SMCP: who is in which office", goes_on=True),
        _Plan(LEASES, 1, lease_s, marker_s, replicas, "A2C-SMCP: which processes live"),
    )


def _stream(plan: _Plan, now: Callable[[], float]) -> api.StreamConfig:
    """A stream as nats-py makes one for a bucket, but for its first sequence: that cannot be said of a bucket there."""
    window = DUPLICATES_S if plan.ttl is None else min(DUPLICATES_S, plan.ttl)
    return api.StreamConfig(
        name=f"KV_{plan.bucket}",
        description=plan.description,
        subjects=[f"$KV.{plan.bucket}.>"],
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        deny_delete=True,
        discard=api.DiscardPolicy.NEW,
        duplicate_window=window,
        max_age=plan.ttl,
        max_consumers=-1,
        max_msgs=-1,
        max_msgs_per_subject=plan.history,
        num_replicas=plan.replicas,
        storage=api.StorageType.FILE,
        subject_delete_marker_ttl=plan.marker_ttl,
        first_seq=int(now() * REVISIONS_PER_S) if plan.goes_on else None,
    )


async def _wait_for_jetstream(js: JetStreamContext, start_s: float) -> api.AccountInfo:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            async with asyncio.timeout(start_s):
                return await js.account_info()
        except (nats.errors.Error, TimeoutError) as error:
            # nats-py's error for "no responder", which carries no code: nobody serves JetStream
            nobody = isinstance(error, ServiceUnavailableError) and error.err_code is None
            bound = min(start_s, ABSENT_S) if nobody else start_s
            if loop.time() + PAUSE_S >= began + bound:
                reason = "nobody serves it" if nobody else said(error)
                raise StoreUnusable(
                    f"JetStream does not answer ({reason}): is it enabled on this nats-server (`jetstream {{}}` in its "
                    "configuration, or --jetstream), has it a leader, and may this credential use $JS.API.>?"
                ) from error
            await asyncio.sleep(PAUSE_S)


async def _know_the_time(clock: StoreClock, start_s: float) -> None:
    """Ask until there is an answer: one may be lost, or the stream have no leader yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + start_s
    while not clock.known:
        lost: BusError | None = None
        try:
            await clock.measure()
        except BusError as error:
            lost = error
        if not clock.known:
            if loop.time() + PAUSE_S >= deadline:
                reason = "it answers with something else" if lost is None else said(lost)
                raise StoreUnusable(f"nats-server does not say what time it is: {reason}") from lost
            await asyncio.sleep(PAUSE_S)


async def _open(js: JetStreamContext, plan: _Plan, start_s: float, now: Callable[[], float]) -> KeyValue:
    try:
        await js.add_stream(_stream(plan, now))
    except BadRequestError as error:
        if error.err_code != NAME_IN_USE:
            raise StoreUnusable(f"the bucket {plan.bucket} cannot be made: {error.description}") from error
    except (nats.errors.Error, TimeoutError) as error:
        reason = error.description if isinstance(error, APIError) else said(error)
        misfit = isinstance(error, APIError) and error.err_code == NO_REPLICAS
        if misfit:
            reason = f"SMCP_KV_REPLICAS is {plan.replicas}, and this NATS cannot keep so many: {reason}"
        kind = StoreMisfit if misfit else StoreUnusable
        raise kind(f"the bucket {plan.bucket} cannot be made: {reason}") from error
    try:
        bucket = await _made(js, plan.bucket, start_s)
        wrong = _differences((await bucket.status()).stream_info.config, plan)
    except (nats.errors.Error, TimeoutError) as error:
        raise StoreUnusable(f"the bucket {plan.bucket} cannot be read: {said(error)}") from error
    if wrong:
        raise StoreMisfit(
            f"the bucket {plan.bucket} exists, but not as this registry needs it: {'; '.join(wrong)}. {_mended(plan)}"
        )
    return bucket


def _mended(plan: _Plan) -> str:
    """What to do about a bucket that is not as it has to be."""
    stream = f"KV_{plan.bucket}"
    if plan.ttl is not None:
        return f"Stop the registries and delete the stream {stream}: leases are taken again"
    return (
        f"Change the stream (nats stream edit {stream} --max-msgs-per-subject={plan.history} --max-age=0s "
        f"--replicas={plan.replicas}), which keeps the rooms"
    )


async def _made(js: JetStreamContext, name: str, within: float) -> KeyValue:
    """A bucket that exists. In a cluster its name is taken some time before it is there, where another makes it.

    Raises:
        BucketNotFoundError: it is not there after so many seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        try:
            return await js.key_value(name)
        except BucketNotFoundError:
            if loop.time() + PAUSE_S >= deadline:
                raise
        await asyncio.sleep(PAUSE_S)


def _differences(found: api.StreamConfig, plan: _Plan) -> list[str]:
    """What is wrong with an existing bucket."""
    wrong = []
    if found.max_msgs_per_subject != plan.history:
        wrong.append(f"it keeps {found.max_msgs_per_subject} revisions of a key, {plan.history} are needed")
    if (found.max_age or None) != plan.ttl:
        if plan.ttl is None:
            wrong.append(f"its entries expire after {found.max_age:g} s, they must not")
        else:
            wrong.append(
                f"its TTL is {found.max_age or 0:g} s and SMCP_LEASE_S is {plan.ttl:g}, which all registries have to "
                "have alike"
            )
    if plan.marker_ttl is not None and not found.subject_delete_marker_ttl:
        wrong.append("it sets no marker where an entry expires (subject_delete_marker_ttl)")
    if found.num_replicas != plan.replicas:
        wrong.append(f"it is kept on {found.num_replicas} servers and SMCP_KV_REPLICAS is {plan.replicas}")
    return wrong
