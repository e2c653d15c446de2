"""The two JetStream buckets: `members` (who has which place) and `leases` (which owner processes live).

Every write is a compare-and-set on a key's revision: 0 where the key has none. A read makes no promise to see the
newest write (another replica may answer it); a write that was decided on an old read is refused with `Conflict`, to be
read and decided again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoStreamResponseError
from nats.js.kv import KeyValue
from pydantic import ValidationError

from smcp_bus.bus import Bus
from smcp_bus.cancellation import raise_if_cancelled
from smcp_proto.errors import Unavailable
from smcp_registry.clock import StoreClock
from smcp_registry.records import MemberRecord
from smcp_registry.wording import said

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
