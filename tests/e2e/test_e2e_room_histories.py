"""The checks of histories: they find what is wrong, and nothing else."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.rooms.ownership import Doubt, History, Kind, Lapse, NoOrder, Operation, Span, check
from tests.e2e.rooms.presence import Hearing, MemberKey, Presence, overheard, picture, presences, wrongs
from tests.e2e.rooms.record import Record

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


def test_a_rejection_shows_the_history_and_the_unexplained_rest() -> None:
    with pytest.raises(NoOrder, match=r"(?s)these are left.*refused +c.*the history.*joined +a.*released +a") as told:
        check(History([joined("a", 0, 1), released("a", 2, 3), refused("c", 4, 5), joined("b", 6, 7)]))
    assert "2.000 -     3.000  released a" in str(told.value)


def test_an_operation_that_ends_before_it_starts_is_rejected() -> None:
    with pytest.raises(ValueError, match="ends before it starts"):
        check(History([joined("a", 2, 1)]))


def test_large_concurrent_histories_are_checked_quickly() -> None:
    """Twenty at once, ten times, with half of them in doubt; and the same with one refusal too many."""
    operations: list[Operation] = []
    spans: list[Span] = []
    for turn in range(10):
        at = turn * 10.0
        names = [f"{turn}-{number}" for number in range(20)]
        operations.append(joined(names[0], at, at + 2))
        operations += [refused(name, at + 0.01 * number, at + 2) for number, name in enumerate(names[1:12])]
        operations.append(released(names[0], at + 3, at + 4))
        for number, name in enumerate(names[12:]):
            spans.append(Doubt(name, at + 0.01 * number, at + 9))
            operations.append(released(name, at + 2, at + 9))
    check(History(operations, spans))
    with pytest.raises(NoOrder):
        check(History([*operations, refused("one more", 101, 102)], spans))


@st.composite
def happened(draw: st.DrawFn) -> History:
    """A history that a place really had: its moments are drawn first, then a span of time around each."""
    owner: str | None = None
    lost: set[str] = set()
    operations = []
    for moment in range(draw(st.integers(0, 14))):
        session = draw(st.sampled_from("abcd"))
        before, after = draw(st.floats(0, 4)), draw(st.floats(0, 4))
        if session in "cd" and draw(st.booleans()):  # what is swept, and asserted again
            if owner == session:
                owner, lost = None, lost | {session}
            elif owner is None and session in lost:
                owner, lost = session, lost - {session}
        match draw(st.sampled_from(Kind)):
            case Kind.JOINED if owner in (None, session):
                kind, owner = Kind.JOINED, session
            case Kind.RELEASED:
                kind, owner = Kind.RELEASED, None if owner == session else owner
            case _ if owner not in (None, session):
                kind = Kind.REFUSED
            case _:
                operations.append(Operation(Kind.SEEN, owner, moment - before, moment + after))
                continue
        if kind is not Kind.REFUSED:
            lost.discard(session)
        operations.append(Operation(kind, session, moment - before, moment + after))
    lapses = [Lapse("c", -1, 20), Lapse("d", -1, 20)]
    return History(draw(st.permutations(operations)), lapses)


@given(happened())
def test_a_real_history_is_accepted(history: History) -> None:
    check(history)


@given(happened())
def test_every_history_allows_at_least_one_final_list(history: History) -> None:
    """Nobody can be seen there whom the history never let in, and of all others at least one answer is right."""
    with pytest.raises(NoOrder):
        check(History([*history.operations, seen("stranger", 50)], history.spans))
    assert any(_accepted(History([*history.operations, seen(end, 50)], history.spans)) for end in (None, *"abcd"))


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.sampled_from("ab"), st.integers(0, 6), st.integers(0, 3)), max_size=5)
)
def test_the_search_agrees_with_trying_all_orders(drawn: list[tuple[Kind, str, int, int]]) -> None:
    operations = [Operation(kind, session, start, start + length) for kind, session, start, length in drawn]
    assert _accepted(History(operations)) == _some_order(operations, None)


def test_enter_and_leave_of_each_member_alternate() -> None:
    told: list[Presence] = [(True, ALPHA), (True, BETA), (False, ALPHA), (True, ALPHA)]
    assert wrongs(told) == []
    assert wrongs(told, before=[]) == []
    assert wrongs([*told, (True, BETA)]) == ["no. 4: enter of ('computer', 'beta') where it was so already"]
    assert len(wrongs([(False, ALPHA), (False, ALPHA)])) == 1


def test_notifications_are_checked_against_the_members_before() -> None:
    assert wrongs([(False, ALPHA)], before=[ALPHA]) == []
    assert len(wrongs([(True, ALPHA)], before=[ALPHA])) == 1
    assert len(wrongs([(False, BETA)], before=[ALPHA])) == 1


def test_the_first_notification_of_a_present_member_is_a_leave() -> None:
    assert wrongs([(False, ALPHA), (True, ALPHA)], there=[ALPHA]) == []
    assert wrongs([(True, BETA)], there=[ALPHA]) == [], "of the others nothing is known"
    assert wrongs([(False, BETA)], there=[ALPHA]) == []
    assert wrongs([(True, BETA), (True, ALPHA)], there=[ALPHA]) == [
        "no. 1: enter of ('computer', 'alpha') where it was so already"
    ]


ENTERS = ("notify:enter_office", {"office_id": "lab", "computer": "alpha"})
LEAVES = ("notify:leave_office", {"office_id": "lab", "computer": "alpha"})
ELSEWHERE = ("notify:enter_office", {"office_id": "elsewhere", "agent": "anna"})
UPDATE = ("notify:update_config", {"computer": "alpha"})


def test_a_member_gets_notifications_while_it_is_in_the_office() -> None:
    assert overheard([ENTERS, UPDATE, LEAVES], [Hearing("lab", 0)], BETA) == []
    assert overheard([ENTERS, ELSEWHERE], [Hearing("lab", 0, 1), Hearing("elsewhere", 1)], BETA) == []
    assert overheard([ENTERS, ELSEWHERE, LEAVES], [Hearing("lab", 0), Hearing("elsewhere", 0)], BETA) == []


@pytest.mark.parametrize("hearings", [[], [Hearing("elsewhere", 0)], [Hearing("lab", 1)], [Hearing("lab", 0, 0)]])
def test_a_notification_of_another_office_is_detected(hearings: list[Hearing]) -> None:
    (found,) = overheard([ENTERS], hearings, BETA)
    assert found.endswith("not being in that office")


def test_a_notification_after_the_leave_is_detected() -> None:
    (found,) = overheard([ENTERS, LEAVES], [Hearing("lab", 0, 1)], BETA)
    assert found.startswith("no. 1: notify:leave_office")


def test_other_notifications_outside_an_office_are_detected() -> None:
    (found,) = overheard([UPDATE, UPDATE], [Hearing("lab", 1)], BETA)
    assert found.startswith("no. 0: notify:update_config")
    assert found.endswith("in no office")


@pytest.mark.parametrize("notice", [ENTERS, LEAVES])
def test_a_notification_about_the_member_itself_is_detected(notice: tuple[str, dict[str, str]]) -> None:
    (found,) = overheard([notice], [Hearing("lab", 0)], ALPHA)
    assert found.endswith("which is itself")
    assert overheard([notice], [Hearing("lab", 0)], ("agent", "alpha")) == [], "an Agent of that name is another"


async def test_a_gateway_counts_as_disturbed_until_it_could_recover() -> None:
    record = Record(patience_s=5.0)
    with record.disturbed(0, lapses=True) as cut:
        assert record.hurt([0, 1], record.now, record.now)
        assert not record.hurt([1], record.now, record.now)
    assert record.hurt([0], cut.end + 4.9, cut.end + 9)
    assert not record.hurt([0], cut.end + 5.1, cut.end + 9)
    assert not record.hurt([0], cut.start - 2, cut.start - 1)


async def test_short_disturbances_of_a_gateway_count_as_slight() -> None:
    record = Record(patience_s=5.0)
    for gateway, short in ((0, True), (0, True), (1, True), (1, False)):
        with record.disturbed(gateway, lapses=True) as cut:
            cut.short = short
    assert record.barely_hurt() == [0]


def test_the_known_room_is_the_last_notification_or_else_the_list() -> None:
    assert picture([(True, ALPHA), (False, ALPHA)], [ALPHA, BETA]) == {BETA}
    assert picture([(True, ALPHA)], []) == {ALPHA}


def test_only_enters_and_leaves_of_the_own_office_count() -> None:
    notices = [
        ("notify:enter_office", {"office_id": "lab", "computer": "alpha"}),
        ("notify:enter_office", {"office_id": "elsewhere", "computer": "beta"}),
        ("notify:update_config", {"computer": "alpha"}),
        ("notify:leave_office", {"office_id": "lab", "agent": "alpha"}),
    ]
    assert presences(notices, "lab") == [(True, ALPHA), (False, ("agent", "alpha"))]


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


def _accepted(history: History) -> bool:
    try:
        check(history)
    except NoOrder:
        return False
    return True


def _some_order(operations: list[Operation], owner: str | None) -> bool:
    """By trying all."""
    if not operations:
        return True
    for operation in operations:
        rest = [other for other in operations if other is not operation]
        if any(other.end < operation.start for other in rest):
            continue
        match operation.kind:
            case Kind.JOINED if owner not in (None, operation.session):
                continue
            case Kind.REFUSED if owner in (None, operation.session):
                continue
            case Kind.SEEN if owner != operation.session:
                continue
        after = {Kind.JOINED: operation.session, Kind.RELEASED: None if owner == operation.session else owner}
        if _some_order(rest, after.get(operation.kind, owner)):
            return True
    return False
