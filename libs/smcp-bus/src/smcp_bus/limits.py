"""Limits: token buckets for how many in a second, and a budget of bytes at a time that is granted to offices in turn.

A bucket is one number: when it will be full again. What is kept after use is dropped first where an office has more of
it than the others (`surplus`).
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

SLOWEST: Final = 16 * 1024
"""Bytes a second; a connection that moves less counts as stalled."""
SWEEP_AT: Final = 1024
"""Buckets from which on full ones are looked for; then at each doubling."""


class Rate:
    """`per_s` a second (0: unlimited), and after a pause at once what comes in `burst_s` seconds, at least one.

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


OFFICE_DIVISOR: Final = 4
"""An office may always hold a quarter, one largest body: slow peers of one office leave room for three others."""


@dataclass(eq=False, slots=True)
class Grant:
    """A share of a budget; it is `given` from its turn until it is released."""

    budget: "ByteBudget"
    size: int
    office: str
    start: Callable[[], None] | None = None
    given: bool = False

    def release(self) -> None:
        self.budget.release(self)


class ByteBudget:
    """At most `limit` bytes (or requests) are given out at any time. A share above the limit is given alone.

    Offices that wait take turns, and the requests of one office come in the order of asking. Nobody overtakes a large
    request whose turn it is. An office holds more than a quarter only while half of the budget stays free, or in a
    single share: then it waits, and the others go on. What is asked for without an office has no such bound.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._held: dict[str, int] = {}
        self._queues: dict[str, deque[Grant]] = {}
        """What waits, by office; in the order of their turns."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def ask(self, size: int, start: Callable[[], None], office: str = "") -> Grant:
        """Call `start` as soon as it is the office's turn and `size` bytes are free; at once if they are."""
        grant = Grant(self, min(size, self.limit), office, start)
        self._queues.setdefault(office, deque()).append(grant)
        self._serve()
        return grant

    def take(self, size: int, office: str = "") -> Grant | None:
        """As `ask`, for what cannot wait; None: there is no room now. Of one budget all is asked for, or all taken."""
        size = min(size, self.limit)
        if not self._may_hold(office, size) or self.used + size > self.limit:
            return None
        return self._give(Grant(self, size, office))

    def release(self, grant: Grant) -> None:
        office = grant.office
        if grant.given:
            grant.given = False
            self.used -= grant.size
            self._held[office] -= grant.size
            if not self._held[office]:
                del self._held[office]
        elif grant in (queue := self._queues.get(office, deque())):
            queue.remove(grant)
            if not queue:
                del self._queues[office]
        if self._queues:
            self._serve()

    def _serve(self) -> None:
        while (office := self._next()) is not None:
            queue = self._queues.pop(office)
            grant = queue.popleft()
            if queue:
                self._queues[office] = queue  # behind the others
            self._give(grant)
            start, grant.start = grant.start, None  # a share that is held long must not hold what it was asked for
            if start is not None:
                start()

    def _give(self, grant: Grant) -> Grant:
        grant.given = True
        self.used += grant.size
        self._held[grant.office] = self._held.get(grant.office, 0) + grant.size
        return grant

    def _next(self) -> str | None:
        for office, queue in self._queues.items():
            if self._may_hold(office, queue[0].size):
                return office if self.used + queue[0].size <= self.limit else None
        return None

    def _may_hold(self, office: str, size: int) -> bool:
        if not office or not (held := self._held.get(office)) or OFFICE_DIVISOR * (held + size) <= self.limit:
            return True
        return 2 * (self.used + size) <= self.limit


Key = TypeVar("Key", bound=tuple[str, ...])


def surplus(entries: Collection[tuple[Key, int]], limit: int) -> list[Key]:
    """Which entries of a cache to drop, so that at most `limit` remains of it.

    An office that has less than an equal share of the limit loses nothing. What it leaves is shared out among the
    others; of what they have above that their oldest entries go.

    Args:
        entries: by age, the oldest first: the key, which begins with the office, and the size.
    """
    held: defaultdict[str, int] = defaultdict(int)
    for key, size in entries:
        held[key[0]] += size
    share = _share(held.values(), limit)
    dropped = []
    for key, size in entries:
        if held[key[0]] > share:
            held[key[0]] -= size
            dropped.append(key)
    return dropped


def _share(held: Iterable[int], limit: int) -> int:
    """The largest share for which the sum of `min(each, share)` is within the limit."""
    rising = sorted(held)
    for position, size in enumerate(rising):
        offices = len(rising) - position
        if size * offices > limit:
            return limit // offices
        limit -= size
    return limit + rising[-1] if rising else limit
