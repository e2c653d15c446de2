"""Token buckets, each of them one number: when it will be full again.

A bucket that is full needs no entry, and taking from one costs an addition and a comparison.
"""

from collections.abc import Callable
from typing import Final

SWEEP_AT: Final = 1024
"""Buckets from which on full ones are looked for; then at each doubling."""

MEMBER_SHARE: Final = 5
"""One member may make a fifth of an office's room events: a Computer whose lists change all the time does not use up
those of the others."""


class Rate:
    """`per_s` a second (0: any number), and after a pause at once what comes in `burst_s` seconds, at least one.

    Attributes:
        interval: seconds that one token takes.
        slack: how far ahead (seconds) the time at which a bucket is full may be, for one more to be taken.
    """

    __slots__ = ("interval", "per_s", "slack")

    def __init__(self, per_s: float, burst_s: float) -> None:
        self.per_s = per_s
        self.interval = 1 / per_s if per_s else 0.0
        self.slack = max(burst_s - self.interval, 0.0) + 1e-9 if per_s else float("inf")

    def wait(self, full_at: float, now: float) -> float:
        """Seconds until one may be taken; 0 or less: now."""
        return full_at - now - self.slack

    def taken(self, full_at: float, now: float, amount: float = 1.0) -> float:
        """When the bucket will be full after taking `amount`."""
        return (max(now, full_at)) + amount * self.interval


class Buckets:
    """A bucket of one rate for each key.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._sweep_at = SWEEP_AT

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str) -> float:
        """Take a token. Returns 0, or, where there is none, the seconds until there is one."""
        now, rate = self._clock(), self._rate
        full_at = self._full_at.get(key, 0.0)
        if (wait := rate.wait(full_at, now)) > 0:
            return wait
        self._full_at[key] = rate.taken(full_at, now)
        if len(self._full_at) >= self._sweep_at:
            self._full_at = {each: at for each, at in self._full_at.items() if at > now}
            self._sweep_at = max(SWEEP_AT, 2 * len(self._full_at))
        return 0.0
