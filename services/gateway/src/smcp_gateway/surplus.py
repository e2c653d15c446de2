"""How many clients a gateway tells to go elsewhere, because it has more than its fair share. Pure: no clock, no I/O.

It begins well above the share and ends at it (hysteresis), so gateways that are about even leave everybody where he is.
It begins only when the surplus has stood for a while: a gateway that died is counted among the others until its lease
has run out, and for so long the share is too small.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

SETTLE_LEASES: Final = 4 / 3
"""Leases for which there has to be a surplus: a gateway that died is counted for one, and a share is a third old."""
MARGIN: Final = 2
"""So many sockets above the fair share are no surplus, and `MARGIN_SHARE` of it."""
MARGIN_SHARE: Final = 0.1
PER_S: Final = 50.0
"""Clients that are told to go in a second at most: replicas take in as many beside everything else (`drain.PER_S`)."""
TAIL: Final = 1 / 10
"""Of the time over which they are spread: what is left near its end (of clients that were not quiet, or came back) is
spread over so much of it."""
LONGEST_LOOK: Final = 1 / 20
"""Of that time: a look counts for no more, however long ago the one before was. What a process that stood still has
missed is not made up for at once."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """What is remembered from one look to the next; times are in seconds of one clock."""

    since: float | None = None
    """Since when there is a surplus, above the margin at first; None: there is none."""
    begun: float | None = None
    """Since when clients are told to go; None: they are not."""
    looked: float = 0.0
    """When it was looked last while they are."""
    due: float = 0.0
    """What of a client was due then: less than one."""


NONE: Final = Surplus()


class Shares:
    """The fair shares that were said lately. The largest counts: who is on the way from one gateway to another is held
    by none of them for a moment, or is in no lease yet, and the share is too small by him.

    Args:
        lease_s: who was said nothing for a lease knows nothing. `SETTLE_LEASES` of it are lately.
    """

    def __init__(self, lease_s: float) -> None:
        self.settle_s = SETTLE_LEASES * lease_s
        self._lease_s = lease_s
        self._said: deque[tuple[float, int]] = deque()

    def note(self, share: int | None, now: float) -> None:
        """It was said now; None: it is not known."""
        if share is None:
            self._said.clear()
        else:
            self._said.append((now, share))

    def largest(self, now: float) -> int | None:
        """Of those that were said lately; None where none is known any more."""
        while self._said and now - self._said[0][0] > self.settle_s:
            self._said.popleft()
        if not self._said or now - self._said[-1][0] > self._lease_s:
            return None
        return max(share for _, share in self._said)


def most(share: int) -> float:
    """How many sockets a gateway may have before it tells anybody to go."""
    return share * (1 + MARGIN_SHARE) + MARGIN


def decide(
    before: Surplus, now: float, *, sockets: int, share: int | None, settle_s: float, spread_s: float
) -> tuple[Surplus, int]:
    """How many of `sockets` are to be told to go now, and what is to be remembered.

    Never so many that fewer than the share stay. All of a surplus goes in `spread_s`, evenly but for the last of it; no
    faster than `PER_S`.

    Args:
        before: what was remembered at the look before; `NONE` at the first.
        sockets: that are here, without those that were told.
        share: the fair one; None where it is not known (any more).
        settle_s: so long there has to be a surplus before anybody is told.
        spread_s: above 0.
    """
    if share is None:
        return NONE, 0
    over = sockets - share
    if before.begun is None:
        if sockets <= most(share):
            return NONE, 0
        since = now if before.since is None else before.since
        if now - since < settle_s:
            return Surplus(since), 0
        return Surplus(since, begun=now, looked=now), 0
    if over <= 0:
        return NONE, 0
    left = max(before.begun + spread_s - now, spread_s * TAIL)
    passed = min(now - before.looked, spread_s * LONGEST_LOOK)
    due = min(before.due + min(over / left, PER_S) * passed, over)
    count = int(due)
    return Surplus(before.since, before.begun, now, due - count), count
