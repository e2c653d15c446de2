from hypothesis import given
from hypothesis import strategies as st

from smcp_agent.events import ComputerEntered, ComputerLeft
from smcp_agent.office import Change, Room

NAMES = st.sampled_from("abcd")
STEPS = st.lists(NAMES, max_size=12)


def listed(*computers: str) -> Room:
    room = Room()
    room.listed(computers)
    return room


def test_an_enter_and_a_leave_are_published_once_each() -> None:
    room = listed()
    changes = (ComputerEntered("a"), ComputerEntered("a"), ComputerLeft("a"), ComputerLeft("a"))
    assert [room.notified(change) for change in changes] == [True, False, True, False]


def test_a_room_list_gives_the_changes_since_the_last_one() -> None:
    room = listed("a", "b")
    room.hold()
    assert room.listed(["b", "c"]) == [ComputerLeft("a"), ComputerEntered("c")]
    assert room.computers == ["b", "c"]


def test_notifications_between_join_and_list_are_held_and_replayed_on_top_of_the_list() -> None:
    room = Room()
    assert not room.notified(ComputerEntered("late"))
    assert room.listed(["early"]) == [ComputerEntered("early"), ComputerEntered("late")]


@given(STEPS, st.data())
def test_the_room_is_right_in_any_order_of_list_and_notifications(flips: list[str], data: st.DataObject) -> None:
    truth: set[str] = set()
    history = [frozenset(truth)]
    notices: list[Change] = []
    for name in flips:
        notices.append(ComputerLeft(name) if name in truth else ComputerEntered(name))
        truth ^= {name}
        history.append(frozenset(truth))
    joined = data.draw(st.integers(0, len(notices)), label="notices before the join are not seen")
    taken = data.draw(st.integers(joined, len(notices)), label="the list is as of this moment")
    arrives = data.draw(st.integers(joined, len(notices)), label="and arrives before this notice")

    room = Room()
    for notice in notices[joined:arrives]:
        assert not room.notified(notice)
    room.listed(history[taken])
    told = dict.fromkeys(room.computers, True)
    for notice in notices[arrives:]:
        if room.notified(notice):
            assert told.get(notice.computer, False) is isinstance(notice, ComputerLeft), "enter and leave alternate"
            told[notice.computer] = isinstance(notice, ComputerEntered)
    assert set(room.computers) == truth
