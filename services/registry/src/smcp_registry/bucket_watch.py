"""Watches the connection to NATS, and follows buckets over it.

A `View` is given all entries of a bucket, then every change, in order and without a gap; nats-py's own watcher loses
its position at a reconnect (ADR 0006). Where NATS has lost its store, the buckets are made anew, and processes assert
their members; until those are back, for a lease at most, their office is not listed (`MembersView.awaited`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError
from nats.js.kv import KV_MARKER_REASON, KV_OP

from smcp_bus.bus import BusError, ConnectionState, describe, raise_if_cancelled
from smcp_bus.nats.bus import Bus
from smcp_proto.backoff import Backoff
from smcp_proto.errors import Unavailable
from smcp_service.lifecycle import set_within

_log = logging.getLogger("smcp_registry.bucket_watch")

CHECK_S: Final = 2.0
"""How often the consumer is asked whether it is still there, and the longest pause after a failure (seconds)."""
NO_STREAM: Final = 10059
"""JetStream's error code for a stream that is not there."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a bucket. `value` is None where the entry was removed or ran out."""

    key: str
    value: bytes | None
    revision: int


class View:
    def __init__(self) -> None:
        self.synced = asyncio.Event()
        """Cleared while the view may be outdated: the connection is down, or the watch begins anew."""

    def reset(self, entries: Sequence[Change]) -> None:
        """All entries of the bucket; what was known before is no longer true."""
        self.synced.set()

    def apply(self, change: Change) -> None:
        raise NotImplementedError


async def follow_all(
    js: JetStreamContext, views: Mapping[str, View], make_missing: Callable[[], Awaitable[None]]
) -> None:
    """Feed the view of each bucket. Raises nats.errors.Error, BusError, TimeoutError: JetStream does not answer, or
    something was lost. A bucket that was gone is there again then."""
    try:
        followers = [asyncio.ensure_future(follow(js, bucket, view)) for bucket, view in views.items()]
        try:
            await asyncio.gather(*followers)
        finally:  # a view that is fed meanwhile must not be emptied
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
    except NotFoundError as error:
        if error.err_code == NO_STREAM:
            await _empty_lost(js, views)
            await make_missing()
        raise
    finally:
        for view in views.values():
            view.synced.clear()


async def _empty_lost(js: JetStreamContext, views: Mapping[str, View]) -> None:
    """Before any is made anew: a process that asserts its members must not hear that they stand, as in the old one."""
    for bucket, view in views.items():
        try:
            await js.stream_info(f"KV_{bucket}")
        except NotFoundError:
            _log.error("the bucket %s is gone; it is made anew, empty", bucket)
            view.reset([])
            view.synced.clear()


async def follow(js: JetStreamContext, bucket: str, view: View) -> None:
    """Feed `view` with the bucket's entries until something is lost; raises as `follow_all`."""
    reader = _Reader(f"$KV.{bucket}.", view)
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
        ),
    )
    try:
        expected = 0
        while True:
            info = await subscription.consumer_info()
            raise_if_cancelled()
            if reader.received < expected:
                raise nats.errors.Error(f"messages of the bucket {bucket} did not arrive")
            expected = info.delivered.consumer_seq if info.delivered else 0
            if not info.num_pending and reader.received >= expected:
                reader.caught_up()
            if await set_within(CHECK_S, reader.failed):
                raise nats.errors.Error(f"messages of the bucket {bucket} were dropped")
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()


class _Reader:
    def __init__(self, prefix: str, view: View) -> None:
        self._prefix = prefix
        self._view = view
        self._snapshot: dict[str, Change] | None = {}
        self.failed = asyncio.Event()
        self.received = 0

    async def take(self, message: Msg) -> None:
        metadata = message.metadata
        if self.failed.is_set():
            return
        if metadata.sequence.consumer != self.received + 1:
            self.failed.set()
            return
        self.received += 1
        headers = message.headers or {}
        # a marker: of a removal by a client, or of an expiry by the server (2.11 and newer)
        gone = KV_OP in headers or KV_MARKER_REASON in headers
        key = message.subject.removeprefix(self._prefix)
        change = Change(key, None if gone else message.data or None, metadata.sequence.stream)
        if self._snapshot is None:
            self._view.apply(change)
            return
        self._snapshot[key] = change
        if metadata.num_pending == 0:
            self.caught_up()

    def caught_up(self) -> None:
        if self._snapshot is None:
            return
        entries, self._snapshot = list(self._snapshot.values()), None
        self._view.reset(entries)


class ConnectionWatch:
    def __init__(self, bus: Bus) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time() if bus.connected else None
        self._up = asyncio.Event()
        if bus.connected:
            self._up.set()
        self._scopes: set[asyncio.Timeout] = set()
        self.close = bus.watch(self._on_connection)

    def up_for(self) -> float:
        """Seconds."""
        return 0.0 if self._since is None else self._loop.time() - self._since

    def begin_anew(self) -> None:
        """Count from now: nothing may be concluded from what was not seen while this process was suspended."""
        _log.warning("this process was suspended; restarting the connection timer")
        if self._since is not None:
            self._since = self._loop.time()

    async def keep(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` for ever: from its beginning after each reconnect, and after a pause where NATS failed it."""
        backoff = Backoff(first_s=0.1, longest_s=CHECK_S)
        while True:
            await self._up.wait()
            started = self._loop.time()
            scope = asyncio.timeout(None)
            try:
                async with scope:
                    self._scopes.add(scope)
                    try:
                        await work()
                    finally:
                        self._scopes.discard(scope)
            except (nats.errors.Error, BusError, Unavailable, TimeoutError) as error:
                if scope.expired():
                    continue
                _log.warning("%s failed and is restarted: %s", what, describe(error))
            if self._loop.time() - started > CHECK_S:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    def _on_connection(self, connection: ConnectionState) -> None:
        if connection is ConnectionState.UP:
            self._since = self._loop.time()
            self._up.set()
        elif connection is ConnectionState.DOWN:
            self._since = None
            self._up.clear()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(self._loop.time())
