"""How much is asked of the system, and of whom."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from smcp_testing.profiles import scaled
from tests.e2e.worlds.layout import Place

GATEWAYS: Final = 4
COMPUTER: Final = "worker"


@dataclass(frozen=True)
class Load:
    """Attributes:
    rate: calls a second, of all offices together.
    longest_s: of a call.
    joins: a second.
    in_flight: so many calls at least are in flight at each SIGTERM.
    processes: for the Agents of each kind, and for the Computers of each kind.
    drain_s: what gateways have to stop.
    timeout_s: what our SDK gives a call: it may have to wait until its Agent and its Computer have moved.
    published_s: what a published client gives it; what it sends while its connection is closed takes so long.
    enough: the part of the rates that has to be reached; of a short play a stop of one gateway is a large part.
    """

    offices: int
    rate: float
    longest_s: float
    joins: float
    in_flight: int
    processes: int
    drain_s: float
    timeout_s: int
    published_s: int
    enough: float

    @property
    def pace(self) -> dict[str, float]:
        """Of one Agent."""
        return {"rate": self.rate / self.offices, "longest_s": self.longest_s}

    def offices_of(self, *, published: bool | None = None, socketio: bool | None = None) -> list[str]:
        """Half of the Agents are published clients, and half of the Computers of either half are on Socket.IO."""
        return [
            f"office {number}"
            for number in range(self.offices)
            if published in (None, number % 2 == 1) and socketio in (None, number // 2 % 2 == 1)
        ]

    def places(self) -> list[Place]:
        """The native Computers: each has a credential."""
        offices = self.offices_of(socketio=False)
        return [Place(f"host-{number}", office, COMPUTER) for number, office in enumerate(offices)]


FULL: Final = Load(
    offices=50,
    rate=float(os.environ.get("RESTARTS_CALLS_PER_S", "200")),
    longest_s=20,
    joins=float(os.environ.get("RESTARTS_JOINS_PER_S", "50")),
    in_flight=20,
    processes=2,
    drain_s=60,
    timeout_s=180,
    published_s=90,
    enough=0.9,
)
REDUCED: Final = Load(
    offices=8,
    rate=24,
    longest_s=2,
    joins=5,
    in_flight=5,
    processes=1,
    drain_s=8,
    timeout_s=30,
    published_s=15,
    enough=0.6,
)


def of_this_profile() -> Load:
    return FULL if scaled(ci=0, soak=1) else REDUCED


def shared(members: Sequence[dict[str, Any]], processes: int) -> list[list[dict[str, Any]]]:
    """The members, over so many processes; none of these is without one."""
    return [list(members[first::processes]) for first in range(min(processes, len(members)))]
