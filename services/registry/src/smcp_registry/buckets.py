"""The two buckets as they have to be: made where they are missing, refused where they are otherwise."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.js import JetStreamContext, api
from nats.js.errors import (
    APIError,
    BadRequestError,
    KeyValueLimitMarkerTTLNotSupportedError,
    ServiceUnavailableError,
)
from nats.js.kv import KeyValue

from smcp_bus.bus import Bus
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
NAME_IN_USE: Final = 10058
"""The code of JetStream's error for a stream that exists with another configuration."""
NO_REPLICAS: Final = 10074
"""The same for more than one replica where NATS is no cluster."""


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
    await _wait_for_jetstream(js, start_s)
    members = _Plan(MEMBERS, HISTORY, None, None, replicas, "A2C-SMCP: who is in which office")
    # the server takes whole seconds from 1 for its markers; they only have to outlive the expiry
    leases = _Plan(LEASES, 1, lease_s, max(1.0, float(round(lease_s))), replicas, "A2C-SMCP: which processes live")
    return Store(
        members=Bucket(MEMBERS, js, await _open(js, members), bus),
        leases=Bucket(LEASES, js, await _open(js, leases), bus),
    )


async def _wait_for_jetstream(js: JetStreamContext, start_s: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            async with asyncio.timeout(start_s):
                await js.account_info()
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
        else:
            return


async def _open(js: JetStreamContext, plan: _Plan) -> KeyValue:
    config = api.KeyValueConfig(
        bucket=plan.bucket,
        description=plan.description,
        history=plan.history,
        ttl=plan.ttl,
        storage=api.StorageType.FILE,
        replicas=plan.replicas,
        limit_marker_ttl=plan.marker_ttl,
    )
    try:
        return await js.create_key_value(config)
    except KeyValueLimitMarkerTTLNotSupportedError as error:
        raise StoreUnusable("this nats-server is too old: the registry needs 2.11 or newer") from error
    except BadRequestError as error:
        if error.err_code != NAME_IN_USE:
            raise StoreUnusable(f"the bucket {plan.bucket} cannot be made: {error.description}") from error
    except (nats.errors.Error, TimeoutError) as error:
        reason = error.description if isinstance(error, APIError) else said(error)
        misfit = isinstance(error, APIError) and error.err_code == NO_REPLICAS
        kind = StoreMisfit if misfit else StoreUnusable
        raise kind(f"the bucket {plan.bucket} cannot be made: {reason}") from error
    try:
        bucket = await js.key_value(plan.bucket)
        wrong = _differences((await bucket.status()).stream_info.config, plan)
    except (nats.errors.Error, TimeoutError) as error:
        raise StoreUnusable(f"the bucket {plan.bucket} cannot be read: {said(error)}") from error
    if wrong:
        raise StoreMisfit(f"the bucket {plan.bucket} exists, but not as this registry needs it: " + "; ".join(wrong))
    return bucket


def _differences(found: api.StreamConfig, plan: _Plan) -> list[str]:
    """What is wrong with an existing bucket, each with what to do about it."""
    wrong = []
    if found.max_msgs_per_subject != plan.history:
        wrong.append(f"it keeps {found.max_msgs_per_subject} revisions of a key, {plan.history} are needed")
    if (found.max_age or None) != plan.ttl:
        if plan.ttl is None:
            wrong.append(f"its entries expire after {found.max_age:g} s, they must not")
        else:
            wrong.append(
                f"its TTL is {found.max_age or 0:g} s and SMCP_LEASE_S is {plan.ttl:g}: give all registries the same "
                f"SMCP_LEASE_S, or stop them and delete the stream KV_{plan.bucket} (leases are taken again)"
            )
    if plan.marker_ttl is not None and not found.subject_delete_marker_ttl:
        wrong.append("it sets no marker where an entry expires (subject_delete_marker_ttl)")
    if found.num_replicas != plan.replicas:
        wrong.append(f"it is kept on {found.num_replicas} servers and SMCP_KV_REPLICAS is {plan.replicas}")
    return wrong
