"""The roster of an office: which enters and leaves are new."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_gateway.rooms.offices import Difference, Roster
from smcp_gateway.sockets.session import MemberKey

ANNA: MemberKey = ("agent", "anna")
BOX: MemberKey = ("computer", "box")
CAR: MemberKey = ("computer", "car")


def enter(picture: Roster, member: MemberKey, revision: int) -> bool | None:
    return picture.event(member, entered=True, epoch=2 * revision + 1)


def leave(picture: Roster, member: MemberKey, revision: int) -> bool | None:
    return picture.event(member, entered=False, epoch=2 * revision)


@pytest.mark.rule("answers.nats.epoch")
def test_an_enter_and_a_leave_are_new_once() -> None:
    picture = Roster()
    assert enter(picture, BOX, 1) is False
    assert enter(picture, BOX, 1) is None
    assert leave(picture, BOX, 2) is False
    assert leave(picture, BOX, 2) is None
    assert enter(picture, BOX, 1) is None
    assert picture.present == frozenset()


def test_a_seat_that_changes_its_holder_has_leave_and_enter_in_one_revision() -> None:
    picture = Roster()
    enter(picture, BOX, 1)
    assert leave(picture, BOX, 5) is False
    assert enter(picture, BOX, 5) is False


def test_a_comparison_reports_no_member_that_stayed() -> None:
    picture = Roster()
    picture.learn([ANNA, BOX])
    picture.ask()
    assert picture.compare([ANNA, BOX]) == Difference(entered=[], left=[], stayed=[ANNA, BOX])


def test_a_comparison_finds_missed_events_and_late_events_are_dropped() -> None:
    picture = Roster()
    picture.learn([ANNA, BOX])
    picture.ask()
    assert picture.compare([ANNA, CAR]) == Difference(entered=[CAR], left=[BOX], stayed=[ANNA])
    assert leave(picture, BOX, 7) is True
    assert enter(picture, CAR, 8) is True
    assert leave(picture, CAR, 9) is False


def test_an_event_after_the_request_is_newer_than_the_list() -> None:
    picture = Roster()
    picture.learn([BOX])
    picture.ask()
    enter(picture, CAR, 9)
    leave(picture, BOX, 10)
    assert picture.compare([BOX]) == Difference(entered=[], left=[], stayed=[CAR])


def test_the_first_list_does_not_undo_earlier_events() -> None:
    picture = Roster()
    leave(picture, BOX, 4)
    enter(picture, CAR, 5)
    picture.learn([BOX])
    assert picture.present == {CAR}


def test_a_list_must_reach_the_newest_event() -> None:
    picture = Roster()
    assert picture.revision == 0
    enter(picture, BOX, 6)
    assert picture.revision == 6
    leave(picture, BOX, 7)
    assert picture.revision == 7


STEPS = st.lists(
    st.tuples(st.sampled_from([ANNA, BOX, CAR]), st.booleans(), st.integers(1, 12))
    | st.frozensets(st.sampled_from([ANNA, BOX, CAR])),
    max_size=30,
)


@pytest.mark.rule("answers.rooms.alternate")
@given(STEPS)
def test_members_present_all_the_time_get_alternating_enters_and_leaves(
    steps: list[tuple[MemberKey, bool, int] | frozenset[MemberKey]],
) -> None:
    picture = Roster()
    picture.learn([])
    told: dict[MemberKey, bool] = {}

    def tell(member: MemberKey, entered: bool) -> None:
        assert told.get(member, False) is not entered
        told[member] = entered

    for step in steps:
        if isinstance(step, frozenset):
            picture.ask()
            difference = picture.compare(step)
            for member in difference.left:
                tell(member, False)
            for member in difference.entered:
                tell(member, True)
        else:
            member, entered, revision = step
            news = (enter if entered else leave)(picture, member, revision)
            if news is False:
                tell(member, entered)
    assert {member for member, entered in told.items() if entered} == picture.present
