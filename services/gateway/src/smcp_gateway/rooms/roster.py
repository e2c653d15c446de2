"""The members of an office, as its members on this gateway know them. Decides which enters and leaves are new.

Enters and leaves carry epochs (`smcp_bus.bus.EPOCH`) and may come twice, late, or not at all (in an outage). The roster
drops what is not newer than the last one of its member, and what a comparison with a list has announced already.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from smcp_gateway.sockets.session import MemberKey
from smcp_proto.schemas import SessionInfo

REMEMBERED: Final = 4096
"""Epochs of members that left are kept up to this number; the oldest are forgotten."""


def member_keys(sessions: Iterable[SessionInfo]) -> list[MemberKey]:
    return [(member.role, member.name) for member in sessions if member.role and member.name]


class Difference(NamedTuple):
    entered: list[MemberKey]
    left: list[MemberKey]
    stayed: list[MemberKey]


class Roster:
    def __init__(self) -> None:
        self._epochs: dict[MemberKey, int] = {}
        self.present: set[MemberKey] = set()
        self._changed: set[MemberKey] = set()
        self.known = False

    @property
    def revision(self) -> int:
        """The newest revision that was heard of. A list must have reached it."""
        return max(self._epochs.values(), default=0) // 2

    def event(self, member: MemberKey, *, entered: bool, epoch: int) -> bool | None:
        """An enter or leave came. None: it is not newer than the last one. True: tell only members that joined after
        the last outage; the others know it by the comparison, or missed what came between. False: tell all."""
        last = self._epochs.get(member)
        if last is not None and epoch <= last:
            return None
        heard_of = self.known or last is not None
        self._epochs[member] = epoch
        self._changed.add(member)
        changed = entered != (member in self.present)
        if entered:
            self.present.add(member)
        else:
            self.present.discard(member)
        self._forget()
        return heard_of and not changed

    def learn(self, members: Iterable[MemberKey]) -> None:
        if not self.known:
            self.present |= {member for member in members if member not in self._epochs}
            self.known = True

    def ask(self) -> None:
        """A list is requested: events from now on are newer than it, or in it."""
        self._changed.clear()

    def compare(self, members: Iterable[MemberKey]) -> Difference:
        """Compare with a list after an outage. Events since `ask` count more than the list."""
        now = (set(members) - self._changed) | (self.present & self._changed)
        before, self.present, self.known = self.present, now, True
        return Difference(sorted(now - before), sorted(before - now), sorted(now & before))

    def _forget(self) -> None:
        if len(self._epochs) <= len(self.present) + REMEMBERED:
            return
        self._changed &= self.present
        gone = sorted((epoch, member) for member, epoch in self._epochs.items() if member not in self.present)
        for _, member in gone[: len(gone) // 2]:
            del self._epochs[member]
