"""NATS came back without its store: on another disk, or in a container that keeps nothing.

The registries make the buckets anew, and the rooms fill by themselves: whose connection was down takes its lease again
and asserts its members. Until those are back who were in an office, for a lease at most, it is not listed
(`MembersView.awaited`): who compared the list with what it knew would take those who come a moment later for gone.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from smcp_registry.watch import Sink

_log = logging.getLogger("smcp_registry.lost_store")

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
