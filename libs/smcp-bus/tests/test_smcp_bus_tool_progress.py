"""The progress notes of a call: few of them go out, the newest, and nothing that is malformed."""

import asyncio
import heapq
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import PROGRESS
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.tool_progress import AGE_DIVISOR, EVERY_S, ProgressThrottle, note_counts

WRONG: list[Any] = [
    {},
    {"progress": None},
    {"progress": True},
    {"progress": "1"},
    {"progress": math.nan},
    {"progress": math.inf},
    {"progress": 10**400},
    {"progress": [1]},
    {"progress": 1, "total": "2"},
    {"progress": 1, "total": -math.inf},
    {"progress": 1, "message": 5},
    {"progress": 1, "message": "x" * 1025},
]


ODD = [b"", b"{", b"[]", b"\xff", b'{"progress": 1, "x": "%b"}' % (b"x" * 9000)]


@dataclass(order=True)
class Timer:
    when: float
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """The time and the timers of a loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when, callback)
        heapq.heappush(self._due, timer)
        return timer

    def go_to(self, moment: float) -> None:
        while self._due and self._due[0].when <= moment:
            timer = heapq.heappop(self._due)
            self.now = timer.when
            if not timer.cancelled:
                timer.callback()
        self.now = moment


class Feed:
    """`taken` has the notes that came; `sent` those that went out, each with the moment, and how many had come."""

    def __init__(self, **call: str) -> None:
        self.clock = Clock()
        self.counts = note_counts()
        self.taken: list[float] = []
        self.sent: list[tuple[float, int, dict[str, Any]]] = []
        self.feed = ProgressThrottle(self.send, self.counts, call, cast("asyncio.AbstractEventLoop", self.clock))

    @property
    def heard(self) -> list[float]:
        return [note["progress"] for _, _, note in self.sent]

    def send(self, body: bytes) -> None:
        self.sent.append((self.clock.now, len(self.taken), orjson.loads(body)))

    def read(self, progress: float, **fields: Any) -> None:
        self.taken.append(progress)
        self.feed.read({"progress": progress, **fields})


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 100)), max_size=60))
def test_the_newest_note_is_sent_and_ever_fewer_are(notes: list[tuple[float, int]]) -> None:
    feed = Feed()
    for pause, progress in notes:
        feed.clock.go_to(feed.clock.now + pause)
        feed.read(progress)
    feed.clock.go_to(feed.clock.now + 3600)
    for (before, _, _), (after, _, _) in pairwise(feed.sent):
        assert after - before >= max(EVERY_S, before / AGE_DIVISOR) - 1e-9
    for _, came, note in feed.sent:
        assert note == {"progress": feed.taken[came - 1]}
    assert not notes or feed.heard[-1] == notes[-1][1]
    assert feed.counts == {"sent": len(feed.sent), "replaced": len(notes) - len(feed.sent), "dropped": 0}


def test_an_hour_of_notes_leaves_room_for_the_answer() -> None:
    feed = Feed()
    for step in range(36_000):
        feed.clock.go_to(step / 10)
        feed.read(step)
    assert 300 < len(feed.sent) < 330, "nats-server lets a Computer send 512 messages to a reply subject"


def test_ten_thousand_notes_at_once_are_two() -> None:
    feed = Feed()
    for step in range(10_000):
        feed.read(step, message="x" * 1024, blob="y" * 10_000)
    feed.clock.go_to(1)
    assert feed.heard == [0, 9_999]
    assert feed.counts == {"sent": 2, "replaced": 9_998, "dropped": 0}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:30])
def test_a_malformed_note_is_dropped_and_counted(wrong: dict[str, Any]) -> None:
    feed = Feed()
    feed.feed.read(wrong)
    feed.feed.read(json.dumps(wrong).encode())
    assert feed.sent == []
    assert feed.counts == {"sent": 0, "replaced": 0, "dropped": 2}


@pytest.mark.parametrize(
    "wrong",
    [b"", b"{", b"[]", b"\xff", b'{"progress": 1, "x": "%b"}' % (b"x" * 9000)],
    ids=lambda wrong: repr(wrong)[:30],
)
def test_what_another_process_says_may_be_anything(wrong: bytes) -> None:
    feed = Feed(agent="anna")
    feed.feed.read(wrong)
    feed.feed.read(b'{"progress": 1, "agent": "eve", "x": 1}')
    assert [note for _, _, note in feed.sent] == [{"agent": "anna", "progress": 1}]
    assert feed.counts == {"sent": 1, "replaced": 0, "dropped": 1}


def test_texts_lose_what_a_terminal_obeys_and_other_fields_are_left_out() -> None:
    feed = Feed()
    feed.read(1, progressToken=7, total=None, message="\x1b[31mred\ntape\u202e", _meta={})
    assert [note for _, _, note in feed.sent] == [{"progress": 1, "message": "red tape\ufffd"}]


def test_notes_go_to_who_asked_last_until_the_call_is_over() -> None:
    feed, later = Feed(), Feed()
    feed.read(1)
    feed.read(2)
    feed.feed.set_receiver(later.send)
    feed.clock.go_to(1)
    feed.feed.set_receiver(None)
    feed.read(3)
    feed.feed.set_receiver(later.send)
    feed.read(4)
    feed.read(5)
    feed.feed.close()
    feed.read(6)
    assert (feed.heard, later.heard) == ([1], [2, 4])
    assert feed.counts == {"sent": 3, "replaced": 0, "dropped": 3}


class Waiting:
    """Who waits for an answer."""

    def __init__(self) -> None:
        self.notes: list[bytes] = []

    def request_moved(self) -> None: ...

    def request_delivered(self) -> None: ...

    def watched(self) -> None: ...

    def noted(self, body: bytes) -> None:
        self.notes.append(body)


async def test_notes_reach_the_asker_before_the_answer_and_none_where_it_reads_none(nats_url: str) -> None:
    notes: list[Any] = []

    async def handle(incoming: Incoming) -> Reply:
        notes.append(incoming.note)
        if incoming.note is not None:
            for step in range(3):
                incoming.note(b"%d" % step)
        return Reply(incoming.body)

    async with open_bus(BusConfig(url=nats_url)) as bus, open_bus(BusConfig(url=nats_url)) as owner:
        await owner.serve("notes", handle)
        for size in (4, 2 * 1024 * 1024):
            body, reads, blind = b"x" * size, Waiting(), Waiting()
            assert (await bus.request("notes", body, timeout=30, headers={PROGRESS: "1"}, progress=reads)).body == body
            assert reads.notes == [b"0", b"1", b"2"]
            assert (await bus.request("notes", body, timeout=30, progress=blind)).body == body
            assert blind.notes == []
        assert [note is None for note in notes] == [False, True] * 2
        late = notes[0]
        late(b"late")  # the call is over, and the inbox has forgotten it
        assert (await bus.request("notes", b"", timeout=30)).body == b""
