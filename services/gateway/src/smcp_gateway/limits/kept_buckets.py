"""Token buckets that outlive what they count for. Pure: who uses them says what time it is.

A bucket that is full says nothing that a new one does not say, so only those are kept that are not.
"""

from collections.abc import Hashable
from typing import Final

from smcp_gateway.limits.token_bucket import Rate, TokenBucket

MOST: Final = 20_000
"""Above it the bucket goes that was used least recently."""


class KeptBuckets:
    """The buckets of one rate, by what they count for.

    Args:
        most: so many are kept, at least 1.
    """

    def __init__(self, rate: Rate, *, most: int = MOST) -> None:
        self._rate = rate
        self._most = most
        self._buckets: dict[Hashable, TokenBucket] = {}
        """In the order of their last use."""

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, owner: Hashable, now: float) -> TokenBucket:
        """The bucket of an owner, new where none is kept.

        Args:
            now: as for `TokenBucket`.
        """
        bucket = self._buckets.pop(owner, None)
        if bucket is None:
            self._make_room(now)
            bucket = TokenBucket(self._rate, now)
        self._buckets[owner] = bucket
        return bucket

    def _make_room(self, now: float) -> None:
        """Those used least recently are full first, or soon after."""
        while self._buckets:
            owner, bucket = next(iter(self._buckets.items()))
            if len(self._buckets) < self._most and not bucket.is_full(now):
                return
            del self._buckets[owner]
