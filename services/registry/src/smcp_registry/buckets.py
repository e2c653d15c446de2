"""The two buckets as they have to be: made where they are missing, refused where they are otherwise.

The revisions of `members` go on where an earlier bucket ended, although nobody remembers it: a NATS that lost its store
is met by gateways and Computers that know of newer ones than a bucket that begins at 1 would have for long, and that
wait for those and drop what is older. So the first revision is the time at which the bucket is made, by nats-server's
clock: the registry that makes the next one may have another.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.js import JetStreamContext, api
from nats.js.errors import (
    APIError,
    BadRequestError,
    BucketNotFoundError,
    ServiceUnavailableError,
)
from nats.js.kv import KeyValue

from smcp_bus.bus import Bus
from smcp_bus.errors import BusError
from smcp_registry.clock import StoreClock
from smcp_registry.store import LEASES, MEMBERS, Bucket, Store
from smcp_registry.wording import said
from smcp_service.failure import Failure

_log = logging.getLogger("smcp_registry.buckets")

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
