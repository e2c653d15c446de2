"""What has run is kept within its bounds, and its key longer than its result; questions leave nothing behind."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from smcp_gateway.asks import Asks, Fate, Outcome, settle
from smcp_gateway.call_records import CallKey, CallRecords
from smcp_testing.waiting import eventually


def key(number: int) -> CallKey:
    return "office", "box", "anna", f"r{number}"


@given(st.lists(st.none() | st.integers(0, 40), max_size=30))
def test_results_stay_within_their_bytes_and_keys_stay(sizes: list[int | None]) -> None:
    async def check() -> None:
        records = CallRecords(results_bytes=64)
        for number, size in enumerate(sizes):
            records.end(key(number), number, None if size is None else b"x" * size)
        ended = [records.find(key(number)) for number in range(len(sizes))]
        assert [record.digest for record in ended if record is not None] == list(range(len(sizes)))
        assert sum(len(record.body or b"") for record in ended if record is not None) <= 64
        if sizes and sizes[-1] is not None:
            assert ended[-1] is not None
            assert ended[-1].body == b"x" * sizes[-1]  # the newest is dropped last

    asyncio.run(check())


async def test_a_cancel_is_kept_for_an_office_and_an_agent() -> None:
    records = CallRecords()
    records.bury(("office", "anna", "r1"))
    assert records.is_buried(("office", "anna", "r1"))
    assert not records.is_buried(("office", "bert", "r1"))


async def test_the_first_outcome_of_a_question_counts_and_a_late_answer_is_dropped() -> None:
    asks = Asks()
    answers: list[asyncio.Future[Outcome]] = [asyncio.get_running_loop().create_future() for _ in range(3)]
    numbers = [asks.enter(answer) for answer in answers]
    assert len(set(numbers)) == 3
    asks.acknowledged(numbers[0], b"{}")
    asks.acknowledged(numbers[1], None)
    asks.acknowledged(99, b"{}")
    settle(answers[2], Fate.GONE)
    asks.acknowledged(numbers[2], b"{}")
    assert [answer.result() for answer in answers] == [b"{}", Fate.UNREADABLE, Fate.GONE]
    for number in numbers:
        asks.leave(number)
        asks.leave(number)
    asks.acknowledged(numbers[2], b"{}")
    assert len(asks) == 0


async def test_a_result_goes_when_its_time_is_over_also_where_nothing_comes_any_more() -> None:
    records = CallRecords(results_s=0.05)
    for number in range(3):
        records.end(key(number), number, b"result")
    assert records.kept_bytes == 18
    await eventually(lambda: records.kept_bytes == 0)
    assert len(records) == 3, "the keys stay"


async def test_keys_and_cancels_go_when_their_time_is_over_also_where_nothing_comes_any_more() -> None:
    records = CallRecords(results_s=0.02, keys_s=0.1, tombstones_s=0.05)
    for number in range(3):
        records.end(key(number), number, b"result" if number else None)
        records.bury(("office", "anna", f"r{number}"))
    assert (len(records), records.kept, records.buried) == (3, 2, 3)
    await eventually(lambda: (len(records), records.kept, records.buried) == (0, 0, 0))
    assert records.kept_bytes == 0


async def test_what_ends_sooner_does_not_wait_for_what_ends_later() -> None:
    records = CallRecords(results_s=600, keys_s=600, tombstones_s=0.05)
    records.end(key(1), 1, b"result")
    records.bury(("office", "anna", "r2"))
    await eventually(lambda: records.buried == 0)
    assert (len(records), records.kept) == (1, 1)
