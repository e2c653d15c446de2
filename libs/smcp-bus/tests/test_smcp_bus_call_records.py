"""What has run is kept within its bounds, and its key longer than its result; what is kept does not run again."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus import call_records
from smcp_bus.call_records import CallRecords, Keeping, digest_of
from smcp_proto.errors import Malformed, Unavailable
from smcp_testing.waiting import eventually

Key = tuple[str, str]
Records = CallRecords[Key, str]
ECHO = digest_of("echo", {"a": 1, "b": 2})


def key(number: int) -> Key:
    return "box", f"r{number}"


def replayed(records: Records, number: int, *, digest: bytes = ECHO, repeat: bool | int | None = None) -> Any:
    body = records.replay(key(number), f"r{number}", tool="echo", digest=digest, repeat=repeat, held_since=None)
    return None if body is None else json.loads(body)


@given(st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 40)), max_size=30))
def test_results_stay_within_their_bytes_and_keys_stay(ended: list[tuple[int, int | None]]) -> None:
    async def check() -> None:
        records: Records = CallRecords(Keeping(results_bytes=64))
        for number, size in ended:
            records.end(key(number), ECHO, None if size is None else b"x" * size)
            found = records.find(key(number))
            assert found is not None
            assert found.body == (None if size is None else b"x" * size)  # the newest is dropped last
        found_again = [records.find(key(number)) for number in {number for number, _ in ended}]
        assert None not in found_again
        kept = sum(len(record.body or b"") for record in found_again if record is not None)
        assert kept == records.kept_bytes <= 64
        records.close()

    asyncio.run(check())


async def test_a_key_that_ends_again_is_counted_once() -> None:
    records: Records = CallRecords()
    for _ in range(3):
        records.end(key(1), ECHO, b"result")
    assert (records.kept, records.kept_bytes) == (1, len(b"result"))
    records.end(key(1), ECHO, None)
    assert (records.kept, records.kept_bytes) == (0, 0)
    assert records.held()["ended_calls"] == 1


async def test_the_oldest_keys_are_forgotten_above_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_records, "MAX_KEYS", 2)
    records: Records = CallRecords()
    for number in range(4):
        records.end(key(number), ECHO, b"result")
        records.bury(f"cancelled {number}")
    assert [records.find(key(number)) is not None for number in range(4)] == [False, False, True, True]
    assert records.kept_bytes == 2 * len(b"result")
    records.bury("cancelled 4")
    records.find(key(0))
    assert records.held()["kept_cancels"] == 2


async def test_a_call_that_ended_is_answered_as_before_and_another_under_its_key_is_refused() -> None:
    records: Records = CallRecords()
    records.end(key(1), ECHO, b'{"content": []}')
    assert replayed(records, 1, digest=digest_of("echo", {"b": 2, "a": 1})) == {"content": []}
    assert replayed(records, 1, repeat=True) == {"content": []}
    for other in (digest_of("echo", {"a": 1}), digest_of("sleep", {"a": 1, "b": 2})):
        with pytest.raises(Malformed) as refused:
            replayed(records, 1, digest=other)
        assert refused.value.details == {"field": "req_id"}


async def test_a_call_whose_result_is_gone_is_answered_as_expired() -> None:
    records: Records = CallRecords()
    records.end(key(1), ECHO, None)
    assert replayed(records, 1)["meta"] == {"a2c_result_expired": True}


async def test_a_call_that_was_cancelled_before_it_came_is_answered_as_cancelled() -> None:
    records: Records = CallRecords()
    records.bury("r1")
    assert replayed(records, 1)["meta"] == replayed(records, 1, repeat=True)["meta"] == {"a2c_cancelled": True}
    assert replayed(records, 2) is None, "a call that is new may run"


async def test_a_repeat_of_a_call_that_is_not_known_may_not_run() -> None:
    records: Records = CallRecords()
    with pytest.raises(Unavailable) as refused:
        replayed(records, 1, repeat=True)
    assert refused.value.details == {"may_have_run": True, "unknown_repeat": True}


async def test_a_result_goes_when_its_time_is_over_also_where_nothing_comes_any_more() -> None:
    records: Records = CallRecords(Keeping(results_s=0.05))
    for number in range(3):
        records.end(key(number), ECHO, b"result")
    assert records.kept_bytes == 18
    await eventually(lambda: records.kept_bytes == 0)
    assert records.held()["ended_calls"] == 3, "the keys stay"


@pytest.mark.rule("answers.calls.timeout.clean")
async def test_keys_and_cancels_go_when_their_time_is_over_also_where_nothing_comes_any_more() -> None:
    records: Records = CallRecords(Keeping(results_s=0.02, keys_s=0.1, tombstones_s=0.05))
    for number in range(3):
        records.end(key(number), ECHO, b"result" if number else None)
        records.bury(f"r{number}")
    assert records.held() == {"ended_calls": 3, "kept_results": 2, "kept_cancels": 3}
    await eventually(lambda: set(records.held().values()) == {0})
    assert records.kept_bytes == 0


async def test_what_ends_sooner_does_not_wait_for_what_ends_later() -> None:
    records: Records = CallRecords(Keeping(results_s=600, keys_s=600, tombstones_s=0.05))
    records.end(key(1), ECHO, b"result")
    records.bury("r2")
    await eventually(lambda: records.held()["kept_cancels"] == 0)
    assert records.held() == {"ended_calls": 1, "kept_results": 1, "kept_cancels": 0}
