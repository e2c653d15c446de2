"""A bucket, followed: all its entries as they stand now, then every change, in order and without a gap.

nats-py's own watcher is not used, since it does not say that it lost something: a consumer that vanished with its
server, or messages that were dropped on the way. Here each of those ends the watch with `WatchLost`, and a new one
begins with all entries again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError
from nats.js.kv import KV_MARKER_REASON, KV_OP

from smcp_bus.cancellation import raise_if_cancelled

CHECK_S: Final = 2.0
"""How often the consumer is asked whether it is still there (seconds)."""
IDLE_S: Final = 30.0
"""After how long without us the server forgets the consumer (seconds)."""


class WatchLost(nats.errors.Error):
    """What was seen is no longer all there was: begin anew."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a bucket. `value` is None where the entry was removed or ran out."""

    key: str
    value: bytes | None
    revision: int


class Sink(Protocol):
    """Who is told. Called from the loop, one change after another; must not block."""

    def reset(self, entries: Sequence[Change], revision: int) -> None:
        """All entries as of `revision` of the bucket; what was known before is no longer true."""

    def apply(self, change: Change) -> None:
        """One change after that."""


async def follow(js: JetStreamContext, bucket: str, sink: Sink) -> None:
    """Tell `sink` of the bucket's entries until something is lost.

    Raises:
        WatchLost: the consumer vanished, or messages did.
        nats.errors.Error, TimeoutError: JetStream does not answer.
    """
    reader = _Reader(f"$KV.{bucket}.", sink)
    subscription = await js.subscribe(
        f"$KV.{bucket}.>",
        stream=f"KV_{bucket}",
        cb=reader.take,
        manual_ack=True,
        config=api.ConsumerConfig(
            ack_policy=api.AckPolicy.NONE,
            deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=IDLE_S,
        ),
    )
    try:
        expected = 0
        while True:
            info = await subscription.consumer_info()
            raise_if_cancelled()
            if reader.received < expected:
                raise WatchLost(f"messages of the bucket {bucket} did not arrive")
            expected = info.delivered.consumer_seq if info.delivered else 0
            if not info.num_pending and reader.received >= expected:
                reader.caught_up()
            if await reader.failed_within(CHECK_S):
                raise WatchLost(f"messages of the bucket {bucket} were dropped")
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()


class _Reader:
    def __init__(self, prefix: str, sink: Sink) -> None:
        self._prefix = prefix
        self._sink = sink
        self._snapshot: dict[str, Change] | None = {}
        self._failed = asyncio.Event()
        self.received = 0

    async def take(self, message: Msg) -> None:
        metadata = message.metadata
        if self._failed.is_set():
            return
        if metadata.sequence.consumer != self.received + 1:
            self._failed.set()
            return
        self.received += 1
        change = self._read(message, metadata.sequence.stream)
        if self._snapshot is None:
            self._sink.apply(change)
            return
        self._snapshot[change.key] = change
        if metadata.num_pending == 0:
            self.caught_up()

    def caught_up(self) -> None:
        """All entries that stood when the watch began have come. Idempotent."""
        if self._snapshot is None:
            return
        entries = list(self._snapshot.values())
        self._snapshot = None
        # not the stream's last sequence: the consumer may follow a replica that has not come as far
        self._sink.reset(entries, max((entry.revision for entry in entries), default=0))

    async def failed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._failed.wait()
        except TimeoutError:
            return False
        return True

    def _read(self, message: Msg, revision: int) -> Change:
        headers = message.headers or {}
        # a marker: of a removal by a client, or of an expiry by the server (2.11 and newer)
        gone = KV_OP in headers or KV_MARKER_REASON in headers
        return Change(message.subject.removeprefix(self._prefix), None if gone else message.data or None, revision)


_log = logging.getLogger("smcp_registry.watch")

NO_STREAM: Final = 10059
"""The code of JetStream's error for a stream that is not there."""


class View(Sink, Protocol):
    """What follows a bucket."""

    def unsynced(self) -> None:
        """It follows it no more."""


class LostStore:
    """Args:
    views: by bucket, what follows it.
    make_missing: makes the buckets that are not there; raises `nats.errors.Error` or TimeoutError where it cannot.
    """

    def __init__(
        self, js: JetStreamContext, views: Mapping[str, View], make_missing: Callable[[], Awaitable[None]]
    ) -> None:
        self._js = js
        self._views = views
        self._make_missing = make_missing

    @asynccontextmanager
    async def replaced(self) -> AsyncIterator[None]:
        """Where the body finds that a bucket is gone, both are there again when its error arrives outside."""
        try:
            yield
        except NotFoundError as error:
            if error.err_code == NO_STREAM:
                await self._replace()
            raise

    async def _replace(self) -> None:
        lost = [bucket for bucket in self._views if not await self._is_there(bucket)]
        # All views before any bucket: a process that takes its lease in the new one and asserts its members must not
        # be told that they stand, as they did in the old one.
        for bucket in lost:
            _log.error("the bucket %s is gone; it is made anew, empty", bucket)
            self._views[bucket].reset([], 0)
            self._views[bucket].unsynced()
        await self._make_missing()

    async def _is_there(self, bucket: str) -> bool:
        try:
            await self._js.stream_info(f"KV_{bucket}")
        except NotFoundError as error:
            if error.err_code == NO_STREAM:
                return False
            raise
        return True
