import asyncio
import gc

from hypothesis import given
from hypothesis import strategies as st

from smcp_agent.events import ComputerEntered, ComputerLeft, EventHub, EventsDropped, EventStream
from smcp_agent.office import Change, Room
from smcp_testing.waiting import eventually


async def test_events_come_in_order_and_the_stream_ends_after_what_is_waiting() -> None:
    hub = EventHub()
    stream = hub.stream()
    hub.publish(ComputerEntered("a"))
    hub.publish(ComputerEntered("b"))
    hub.close()
    hub.publish(ComputerEntered("too late"))
    assert [event async for event in stream] == [ComputerEntered("a"), ComputerEntered("b")]


async def test_a_reader_waits_for_the_next_event() -> None:
    hub = EventHub()
    stream = hub.stream()
    waiting = asyncio.create_task(anext(stream))
    await eventually(lambda: not stream._changed.is_set())
    hub.publish(ComputerEntered("a"))
    assert await waiting == ComputerEntered("a")


async def test_a_full_stream_keeps_the_newest_events_and_counts_the_dropped() -> None:
    stream = EventStream(length=2)
    for name in "abcde":
        stream.push(ComputerEntered(name))
    stream.close()
    assert [event async for event in stream] == [EventsDropped(3), ComputerEntered("d"), ComputerEntered("e")]


async def test_an_unreferenced_stream_is_freed() -> None:
    hub = EventHub()
    hub.stream()
    gc.collect()
    hub.publish(ComputerEntered("a"))
    assert len(hub._streams) == 0


async def test_a_failing_callback_does_not_affect_other_callbacks() -> None:
    hub = EventHub()
    reported: list[object] = []
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    hub.call(lambda event: 1 / 0)  # type: ignore[arg-type]
    stop = hub.call(heard.append)
    hub.publish(ComputerEntered("a"))
    await eventually(lambda: heard == [ComputerEntered("a")])
    assert isinstance(reported[0], ZeroDivisionError)
    stop()
    stop()


NAMES = st.sampled_from("abcd")
STEPS = st.lists(NAMES, max_size=12)


def listed(*computers: str) -> Room:
    room = Room()
    room.listed(computers)
    return room


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
