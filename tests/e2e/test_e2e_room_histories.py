"""The checks of histories: they find what is wrong, and nothing else."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.rooms.ownership import Doubt, History, Kind, Lapse, NoOrder, Operation, check
from tests.e2e.rooms.presence import Hearing, MemberKey, Presence, overheard, picture, wrongs

ALPHA: MemberKey = ("computer", "alpha")
BETA: MemberKey = ("computer", "beta")


def joined(session: str, start: float, end: float) -> Operation:
    return Operation(Kind.JOINED, session, start, end)


def refused(session: str, start: float, end: float) -> Operation:
    return Operation(Kind.REFUSED, session, start, end)


def released(session: str, start: float, end: float = math.inf) -> Operation:
    return Operation(Kind.RELEASED, session, start, end)


def seen(session: str | None, at: float) -> Operation:
    return Operation(Kind.SEEN, session, at, at)


RIGHT: dict[str, History] = {
    "nothing": History([]),
    "one joins and leaves": History([joined("a", 0, 1), released("a", 2, 3), seen(None, 4)]),
    "one of three at once gets it": History([refused("a", 0, 3), joined("b", 1, 2), refused("c", 0, 3), seen("b", 4)]),
    "refused while the first join is under way": History([joined("a", 0, 5), refused("b", 1, 2)]),
    "a join during a leave": History([joined("a", 0, 1), released("a", 2, 5), joined("b", 3, 4)]),
    "a refusal during a leave": History([joined("a", 0, 1), released("a", 2, 5), refused("b", 3, 4)]),
    "a place is free as soon as its owner died": History([joined("a", 0, 1), released("a", 2), joined("b", 3, 4)]),
    "a place waits for the lease of its owner": History([joined("a", 0, 1), released("a", 2, 9), refused("b", 7, 8)]),
    "again in one's own place": History([joined("a", 0, 1), joined("a", 2, 3), refused("b", 4, 5)]),
    "again after a leave": History([joined("a", 0, 1), released("a", 2, 3), joined("a", 4, 5), seen("a", 6)]),
    "swept, and another has it": History([joined("a", 0, 1), joined("b", 4, 5)], [Lapse("a", 2, 8)]),
    "swept and asserted again": History(
        [joined("a", 0, 1), joined("b", 3, 4), released("b", 5, 6), seen("a", 8)], [Lapse("a", 2, 9)]
    ),
    "a join without an answer was carried out": History(
        [refused("b", 2, 3), released("a", 4, 9), joined("c", 9, 10)], [Doubt("a", 0, 9)]
    ),
    "a join without an answer was not": History(
        [joined("b", 2, 3), released("a", 4, 9), seen("b", 10)], [Doubt("a", 0, 9)]
    ),
}

WRONG: dict[str, History] = {
    "two have it": History([joined("a", 0, 1), joined("b", 2, 3)]),
    "two have it, at once": History([joined("a", 0, 3), joined("b", 0, 3)]),
    "refused, and nobody was there": History([refused("a", 0, 1)]),
    "refused, and only oneself was there": History([joined("a", 0, 1), refused("a", 2, 3)]),
    "refused after the leave was answered": History([joined("a", 0, 1), released("a", 2, 3), refused("b", 4, 5)]),
    "refused past the lease of a dead owner": History([joined("a", 0, 1), released("a", 2, 9), refused("b", 10, 11)]),
    "all of two were refused": History([refused("a", 0, 3), refused("b", 0, 3), seen(None, 4)]),
    "a leave was lost": History([joined("a", 0, 1), released("a", 2, 3), seen("a", 4)]),
    "a join was lost": History([joined("a", 0, 1), seen(None, 2)]),
    "swept too early": History([joined("a", 0, 1), seen(None, 2)], [Lapse("a", 3, 8)]),
    "asserted again after the lapse": History([joined("a", 0, 1), seen(None, 5), seen("a", 9)], [Lapse("a", 2, 4)]),
    "asserted again over another": History([joined("a", 0, 1), joined("b", 3, 4), seen("a", 8)], [Lapse("a", 2, 9)]),
    "got it in a lapse without having had it": History([refused("b", 3, 4)], [Lapse("a", 0, 9)]),
    "asserted again after it had left": History(
        [joined("a", 0, 1), released("a", 3, 4), seen("a", 5)], [Lapse("a", 2, 9)]
    ),
    "a join without an answer was never taken back": History(
        [released("a", 4, 9), seen("a", 10)], [Doubt("a", 0, math.inf)]
    ),
    "another's was taken by a join without an answer": History(
        [joined("b", 0, 1), released("a", 4, 9), seen("a", 3)], [Doubt("a", 2, 9)]
    ),
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT.keys())
def test_a_valid_history_is_accepted(history: History) -> None:
    check(history)


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG.keys())
def test_an_invalid_history_is_rejected(history: History) -> None:
    with pytest.raises(NoOrder):
        check(history)


ENTERS = ("notify:enter_office", {"office_id": "lab", "computer": "alpha"})
LEAVES = ("notify:leave_office", {"office_id": "lab", "computer": "alpha"})


@pytest.mark.parametrize("hearings", [[], [Hearing("elsewhere", 0)], [Hearing("lab", 1)], [Hearing("lab", 0, 0)]])
def test_a_notification_of_another_office_is_detected(hearings: list[Hearing]) -> None:
    (found,) = overheard([ENTERS], hearings, BETA)
    assert found.endswith("not being in that office")


@pytest.mark.parametrize("notice", [ENTERS, LEAVES])
def test_a_notification_about_the_member_itself_is_detected(notice: tuple[str, dict[str, str]]) -> None:
    (found,) = overheard([notice], [Hearing("lab", 0)], ALPHA)
    assert found.endswith("which is itself")
    assert overheard([notice], [Hearing("lab", 0)], ("agent", "alpha")) == [], "an Agent of that name is another"


@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_a_duplicate_or_lost_notification_is_always_detected(chance: random.Random, count: int) -> None:
    there = {ALPHA: False, BETA: False}
    told: list[Presence] = []
    for _ in range(count):
        member = chance.choice([ALPHA, BETA])
        there[member] = not there[member]
        told.append((there[member], member))
    assert wrongs(told, before=[]) == []
    which = chance.randrange(count)
    assert wrongs([*told[: which + 1], *told[which:]], before=[])
    lost = [*told[:which], *told[which + 1 :]]
    listed = {member for member, present in there.items() if present}
    assert wrongs(lost, before=[]) or picture(lost, []) != listed
