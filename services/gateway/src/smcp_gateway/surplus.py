"""How many clients a gateway tells to go elsewhere, because it has more than its fair share. Pure: no clock, no I/O.

It begins well above the share and ends at it (hysteresis), so gateways that are about even leave everybody where he is.
It begins only when the surplus has stood for a while: a gateway that died is counted among the others until its lease
has run out, and for so long the share is too small.
"""

from dataclasses import dataclass
from typing import Final

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
    """Since when there is more than the margin allows; None: there is not."""
    begun: float | None = None
    """Since when clients are told to go; None: they are not."""
    looked: float = 0.0
    """When it was looked last while they are."""
    due: float = 0.0
    """What of a client was due then: less than one."""


NONE: Final = Surplus()


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
