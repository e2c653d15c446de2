"""What happened to each place while a plan was run, for `ownership.check`, and in words."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from smcp_proto.member_names import Role
from tests.e2e.rooms.ownership import Doubt, History, Kind, Lapse, Operation, Span


@dataclass(frozen=True)
class Place:
    """An office's Agent (`name` is then empty), or a Computer's name in an office."""

    office: str
    role: Role
    name: str


def place(office: str, role: Role, name: str) -> Place:
    return Place(office, role, name if role == "computer" else "")


@dataclass
class Disturbance:
    """While it lasts, and for some time after it, the sessions of a gateway may be cut off.

    Attributes:
        lapses: the registry may also let its members go, and take them back.
        short: it was over so soon that nobody may lose a place by it that nobody else wants.
    """

    gateway: int
    start: float
    lapses: bool
    end: float = math.inf
    short: bool = False


@dataclass(frozen=True)
class _Ending:
    label: str
    start: float
    at: float


class Record:
    """Times are seconds since it was made.

    Args:
        patience_s: after so long a dead session keeps nobody out, and a healed gateway has its members asserted.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.lines: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._zero = self._loop.time()
        self._operations: dict[Place, list[Operation]] = defaultdict(list)
        self._endings: dict[Place, list[_Ending]] = defaultdict(list)
        self._doubts: dict[Place, list[Doubt]] = defaultdict(list)
        self._gateways: dict[str, int] = {}
        self._sessions: dict[str, str] = {}
        self._disturbances: list[Disturbance] = []

    @property
    def now(self) -> float:
        return self._loop.time() - self._zero

    def say(self, what: str) -> None:
        self.lines.append(f"{self.now:9.3f}  {what}")

    # what happened

    def session(self, label: str, sid: str, gateway: int) -> None:
        """There is a new session; in the history it is called `label`."""
        self._sessions[sid] = label
        self._gateways[label] = gateway

    def joined(self, where: Place, label: str, start: float) -> None:
        self._operations[where].append(Operation(Kind.JOINED, label, start, self.now))

    def refused(self, where: Place, label: str, start: float) -> None:
        self._operations[where].append(Operation(Kind.REFUSED, label, start, self.now))

    def left(self, where: Place, label: str, start: float) -> None:
        self._operations[where].append(Operation(Kind.RELEASED, label, start, self.now))

    def ended(self, where: Place, label: str, start: float, at: float | None = None) -> None:
        """The session ended between `start` and `at` (None: now); the office learns of it in time."""
        self._endings[where].append(_Ending(label, start, self.now if at is None else at))

    def doubted(self, where: Place, label: str, start: float) -> None:
        """A join had no answer that says whether it was done; its session was ended for that now."""
        self._doubts[where].append(Doubt(label, start))
        self.ended(where, label, self.now)

    def seen(self, where: Place, sid: str | None, start: float) -> None:
        """The place is that session's, or nobody's."""
        label = None if sid is None else self._sessions.get(sid, f"an unknown session {sid}")
        self._operations[where].append(Operation(Kind.SEEN, label, start, self.now))

    @contextmanager
    def disturbed(self, gateway: int, *, lapses: bool) -> Iterator[Disturbance]:
        """The block hurts that gateway, and heals it."""
        disturbance = Disturbance(gateway, self.now, lapses)
        self._disturbances.append(disturbance)
        yield disturbance
        disturbance.end = min(disturbance.end, self.now)

    # what is asked

    def cause(self, gateway: int, at: float) -> float | None:
        """Since when a session of that gateway may have been cut off that was so at `at`; None: for no reason."""
        starts = [found.start for found in self._disturbances if self._concerns(found, gateway, at)]
        return min(starts, default=None)

    def hurt(self, gateways: Collection[int], start: float, end: float) -> bool:
        """Whether any of these was, or had not recovered, at some time between the two."""
        return any(
            found.gateway in gateways and found.start <= end and start <= found.end + self.patience_s
            for found in self._disturbances
        )

    def barely_hurt(self) -> list[int]:
        """The gateways that were hurt, and never for long."""
        hurt = {found.gateway for found in self._disturbances}
        return sorted(hurt - {found.gateway for found in self._disturbances if not found.short})

    def places(self) -> list[Place]:
        return sorted({*self._operations, *self._endings}, key=repr)

    def history(self, where: Place) -> History:
        operations = [*self._operations[where], *map(self._released, self._endings[where])]
        owners = {operation.session for operation in operations if operation.kind is Kind.JOINED}
        spans: list[Span] = [
            Lapse(label, found.start, found.end + self.patience_s)
            for label in sorted(owner for owner in owners if owner is not None)
            for found in self._disturbances
            if found.lapses and found.gateway == self._gateways[label]
        ]
        return History(operations, [*spans, *self._doubts[where]])

    def _released(self, ending: _Ending) -> Operation:
        gateway = self._gateways[ending.label]
        ends = [found.end for found in self._disturbances if self._concerns(found, gateway, ending.at)]
        end = max([ending.at, *ends]) + self.patience_s
        return Operation(Kind.RELEASED, ending.label, ending.start, end)

    def _concerns(self, found: Disturbance, gateway: int, at: float) -> bool:
        return found.gateway == gateway and found.start <= at <= found.end + self.patience_s
