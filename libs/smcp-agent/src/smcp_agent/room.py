"""Who is in the office, as the agent knows it: a pure reducer of snapshots and notifications."""

from collections.abc import Iterable
from dataclasses import dataclass

from smcp_agent.events import ComputerEntered, ComputerLeft

Change = ComputerEntered | ComputerLeft


@dataclass(frozen=True, slots=True)
class Entered:
    """The room's `notify:enter_office` about a Computer."""

    computer: str


@dataclass(frozen=True, slots=True)
class Left:
    """The room's `notify:leave_office` about a Computer."""

    computer: str


class Room:
    """The Computers of the office.

    Between a join and the list that is asked for after it, notifications are held back and replayed on top of the
    list: applied at once, an enter that is newer than the list would be wiped out by it. A replayed notification
    that is older than the list is corrected by the one that follows it, because notifications come in order.
    """

    def __init__(self) -> None:
        self._computers: set[str] = set()
        self._held: list[Entered | Left] | None = []

    @property
    def computers(self) -> list[str]:
        """Their names, sorted."""
        return sorted(self._computers)

    def __contains__(self, computer: str) -> bool:
        return computer in self._computers

    def hold(self) -> None:
        """A (re-)join begins: keep notifications until the next `listed`."""
        self._held = []

    def notified(self, notice: Entered | Left) -> list[Change]:
        """Take a notification; returns what changed."""
        if self._held is not None:
            self._held.append(notice)
            return []
        return self._apply(notice)

    def listed(self, computers: Iterable[str]) -> list[Change]:
        """Take the list of the room; returns what is different from what was known before, leaves first."""
        held, self._held = self._held or [], None
        before, self._computers = self._computers, set(computers)
        for notice in held:
            self._apply(notice)
        return [
            *(ComputerLeft(name) for name in sorted(before - self._computers)),
            *(ComputerEntered(name) for name in sorted(self._computers - before)),
        ]

    def _apply(self, notice: Entered | Left) -> list[Change]:
        if isinstance(notice, Entered) and notice.computer not in self._computers:
            self._computers.add(notice.computer)
            return [ComputerEntered(notice.computer)]
        if isinstance(notice, Left) and notice.computer in self._computers:
            self._computers.discard(notice.computer)
            return [ComputerLeft(notice.computer)]
        return []
