"""What an observer was told of its room mates: enter and leave alternate. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from smcp_proto.ids import Role

MemberKey = tuple[Role, str]
"""Role and name."""

Presence = tuple[bool, MemberKey]
"""Whether it was an enter (else a leave), and whose."""

_EVENTS = {"notify:enter_office": True, "notify:leave_office": False}


def presences(notices: Iterable[tuple[str, Mapping[str, Any]]], office: str) -> list[Presence]:
    """The enters and leaves of an office, in the order in which they were told."""
    return [
        (_EVENTS[event], ("agent", data["agent"]) if "agent" in data else ("computer", data["computer"]))
        for event, data in notices
        if event in _EVENTS and data.get("office_id") == office
    ]


def wrongs(told: Iterable[Presence], before: Iterable[MemberKey] | None = None) -> list[str]:
    """Where enter and leave do not alternate.

    Args:
        before: who was there when the observer came, where that is known for sure; else the first of a member may be
            either.
    """
    there: dict[MemberKey, bool] = dict.fromkeys(before or (), True)
    found = []
    for number, (entered, member) in enumerate(told):
        known = there.get(member, None if before is None else False)
        if known is entered:
            found.append(f"no. {number}: {'enter' if entered else 'leave'} of {member} where it was so already")
        there[member] = entered
    return found


def picture(told: Iterable[Presence], listed: Iterable[MemberKey]) -> set[MemberKey]:
    """Who is there by what was told; of whom nothing was told, by a list that was read during the stay."""
    last = {member: entered for entered, member in told}
    return {member for member in {*listed, *last} if last.get(member, True)}
