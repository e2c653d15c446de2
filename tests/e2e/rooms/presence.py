"""Checks the notifications of an observer: enter and leave alternate, and each was for it. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from smcp_proto.member_names import Role

MemberKey = tuple[Role, str]
"""Role and name."""

Presence = tuple[bool, MemberKey]
"""Whether it was an enter (else a leave), and whose."""

_EVENTS = {"notify:enter_office": True, "notify:leave_office": False}


def presences(notices: Iterable[tuple[str, Mapping[str, Any]]], office: str) -> list[Presence]:
    """The enters and leaves of an office, in the order in which they came."""
    return [
        (_EVENTS[event], _member(data))
        for event, data in notices
        if event in _EVENTS and data.get("office_id") == office
    ]


@dataclass(frozen=True)
class Hearing:
    """The notices in which a connection may hear of an office: from its notice no. `begin` to before no. `end`."""

    office: str
    begin: int
    end: int | None = None

    def covers(self, number: int) -> bool:
        return self.begin <= number and (self.end is None or number < self.end)


def overheard(
    notices: Iterable[tuple[str, Mapping[str, Any]]], hearings: Collection[Hearing], own: MemberKey
) -> list[str]:
    """Notices to a connection that are not for it: of an office that it is not in (any more), or of itself.

    Args:
        notices: all of the connection, in order.
        hearings: where it was a member, or may have been one.
    """
    found = []
    for number, (event, data) in enumerate(notices):
        if not event.startswith("notify:"):
            continue
        here = {hearing.office for hearing in hearings if hearing.covers(number)}
        if event not in _EVENTS:
            if not here:
                found.append(f"no. {number}: {event} {data}, in no office")
            continue
        if data.get("office_id") not in here:
            found.append(f"no. {number}: {event} {data}, not being in that office")
        if _member(data) == own:
            found.append(f"no. {number}: {event} {data}, which is itself")
    return found


def wrongs(
    told: Iterable[Presence], before: Iterable[MemberKey] | None = None, *, there: Iterable[MemberKey] = ()
) -> list[str]:
    """Where enter and leave do not alternate.

    Args:
        before: who was there when the observer came, where that is known for sure; else the first of a member may be
            either.
        there: of those of whom it is not known, who was there for sure.
    """
    present: dict[MemberKey, bool] = dict.fromkeys([*(before or ()), *there], True)
    found = []
    for number, (entered, member) in enumerate(told):
        known = present.get(member, None if before is None else False)
        if known is entered:
            found.append(f"no. {number}: {'enter' if entered else 'leave'} of {member} where it was so already")
        present[member] = entered
    return found


def picture(told: Iterable[Presence], listed: Iterable[MemberKey]) -> set[MemberKey]:
    """The members by enters and leaves; those without either, by a list that was read during the stay."""
    last = {member: entered for entered, member in told}
    return {member for member in {*listed, *last} if last.get(member, True)}


def _member(data: Mapping[str, Any]) -> MemberKey:
    """Whom an enter or leave is about."""
    return ("agent", data["agent"]) if "agent" in data else ("computer", data["computer"])
