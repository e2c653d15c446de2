"""JSON keeps its whole numbers, whatever their size."""

import asyncio
import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smcp_bus import exact_json

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**63 - 2, max_value=2**64 + 2)
    | st.integers(min_value=-(2**63) - 2, max_value=-(2**63) + 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))


@given(VALUES)
@example({"a": [{"b": 2**64}]})
def test_what_is_written_is_read_as_it_was(value: Any) -> None:
    text = exact_json.written(value)
    assert repr(exact_json.read(text)) == repr(value) == repr(json.loads(text))


def test_keys_are_sorted_with_numbers_of_any_size_too() -> None:
    assert exact_json.written({"b": 2**70, "a": {"d": 1, "c": 2}}, sort_keys=True) == (
        b'{"a":{"c":2,"d":1},"b":1180591620717411303424}'
    )


@pytest.mark.parametrize("size", [10, exact_json.ASIDE_BYTES])
@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**18, 2**63, 1.5, 1e300, 0.1234567890123456789, -(2**200)])
async def test_what_is_read_aside_is_read_as_it_was(size: int, number: float) -> None:
    value = {"text": "9" * size, "list": [{"n": number}, [number], "😀"]}
    assert repr(await exact_json.read_aside(exact_json.written(value))) == repr(value)


@pytest.mark.parametrize("before", [0, 16 * 1024 - 19, 16 * 1024 - 10, 16 * 1024 - 2, 16 * 1024, 32 * 1024 - 5])
def test_a_number_is_found_wherever_it_stands(before: int) -> None:
    value = ["x" * max(0, before - 4), 2**63 * 3, "y" * 40_000]
    assert exact_json.read(exact_json.written(value)) == value


@given(VALUES, st.lists(st.integers(0, 3000), min_size=1, max_size=3), st.integers(0, 60_000))
@example([2**64], [0], 60_000)
@example([2**64], [600], 60_000)
@example({"a": -(2**64)}, [3000, 3000], 0)
def test_a_number_is_found_among_few_values_and_among_many(value: Any, others: list[int], text: int) -> None:
    whole = [{"text": "9" * text}, *([[0] * many] for many in others), value]
    assert repr(exact_json.read(exact_json.written(whole))) == repr(whole)


async def test_the_loop_goes_on_while_a_large_text_is_read_exactly() -> None:
    text = exact_json.written({"a": [{"n": 2**64, "f": 0.5}] * 200_000})
    assert len(text) > exact_json.ASIDE_BYTES
    loop = asyncio.get_running_loop()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = loop.create_task(tick())
    try:
        value = await exact_json.read_aside(text)
    finally:
        ticking.cancel()
    assert value["a"][-1] == {"n": 2**64, "f": 0.5}
    assert ticks > 10


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"[Infinity]", b"1e400", b"9" * 5000, b'"\\ud800"'])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        exact_json.read(text)


def test_what_is_nested_too_deep_for_the_exact_reader_is_read_all_the_same() -> None:
    deep = b"[" * 1000 + b"%d" % 2**64 + b"]" * 1000
    assert isinstance(exact_json.read(deep), list)
