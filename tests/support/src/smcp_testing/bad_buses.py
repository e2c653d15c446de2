"""The deliberately bad buses under a whole world of services: one kind of fault at a time, and all at once."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from smcp_bus.nats.bus import Bus
from smcp_testing.bad_bus import BadBus
from smcp_testing.fault_schedule import SOUND, Rates


@dataclass(frozen=True, slots=True)
class Faults:
    """What a bus does to messages; `happen` names what has to have happened (`Fates.met`) for a test to mean anything.

    `happen` leaves out what not every suite has many of (chunks).
    """

    requests: Rates = SOUND
    replies: Rates = SOUND
    notices: Rates = SOUND
    chunks: Rates = SOUND
    happen: tuple[str, ...] = ()


LOST: Final = Faults(
    requests=Rates(lost=0.1),
    replies=Rates(lost=0.1),
    notices=Rates(lost=0.2),
    happen=("request lost", "reply lost"),
)
DOUBLED: Final = Faults(
    requests=Rates(doubled=0.5),
    notices=Rates(doubled=0.5),
    chunks=Rates(doubled=0.5),
    happen=("served doubled", "notice doubled"),
)
LATE: Final = Faults(
    requests=Rates(late=0.5),
    replies=Rates(late=0.5),
    notices=Rates(late=0.5),
    chunks=Rates(late=0.5),
    happen=("request late", "reply late", "notice late"),
)
ALL: Final = Faults(
    requests=Rates(lost=0.05, doubled=0.3, late=0.3),
    replies=Rates(lost=0.05, late=0.3),
    notices=Rates(lost=0.1, doubled=0.3, late=0.3),
    chunks=Rates(doubled=0.2, late=0.2),
    happen=("request lost", "reply lost", "served doubled", "request late", "reply late"),
)
REORDERED: Final = Faults(
    requests=Rates(doubled=0.5, late=0.7),
    replies=Rates(late=0.3),
    notices=Rates(doubled=0.3, late=0.7),
    chunks=Rates(doubled=0.2, late=0.5),
    happen=("served doubled", "served late", "request late"),
)
"""A second copy of a request is served later than what was asked after it."""
FAULTS: Final = {"lost": LOST, "doubled": DOUBLED, "late": LATE, "reordered": REORDERED, "all": ALL}
"""By name, for parametrizing."""


@dataclass
class BadBuses:
    """Makes each bus of a world a bad one; each has a seed of its own, so that they do not stumble in step."""

    faults: Faults
    seed: int = 1
    made: list[BadBus] = field(default_factory=list)

    @asynccontextmanager
    async def over(self, bus: Bus) -> AsyncIterator[BadBus]:
        faults = self.faults
        bad = BadBus(
            bus,
            1000 * self.seed + len(self.made),
            requests=faults.requests,
            replies=faults.replies,
            notices=faults.notices,
            chunks=faults.chunks,
        )
        self.made.append(bad)
        async with bad:
            yield bad

    @property
    def met(self) -> Counter[str]:
        """How many messages met with what, on all buses together."""
        return sum((bad.met for bad in self.made), Counter[str]())

    def check(self, *more: str, notices: bool = True) -> None:
        """What was to happen did happen, `more` included; without `notices` to those few. Raises AssertionError."""
        met, happen = self.met, [what for what in self.faults.happen if notices or not what.startswith("notice")]
        assert all(met[what] for what in (*happen, *more)), met
