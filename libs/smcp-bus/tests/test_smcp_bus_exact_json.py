"""JSON keeps its whole numbers, whatever their size, and is refused by its bytes where it would cost too much."""

import asyncio
import json
import time
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smcp_bus import exact_json
from smcp_proto.errors import Malformed, TooLarge
from smcp_proto.validation import MAX_TEXT

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
def test_written_json_is_read_back_unchanged(value: Any) -> None:
    text = exact_json.written(value)
    assert repr(exact_json.read(text)) == repr(value) == repr(json.loads(text))


@pytest.mark.parametrize(
    "value", ["x" * 70_000, list(range(3000)), [{"name": "n"}] * 300], ids=["text", "list", "fields"]
)
def test_written_json_takes_the_memory_of_its_length(value: Any) -> None:
    exact_json.written(value)
    tracemalloc.start()
    try:
        text = exact_json.written(value)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < len(text) + 1024


def test_keys_are_sorted_with_numbers_of_any_size_too() -> None:
    assert exact_json.written({"b": 2**70, "a": {"d": 1, "c": 2}}, sort_keys=True) == (
        b'{"a":{"c":2,"d":1},"b":1180591620717411303424}'
    )


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**18, 2**63, 1.5, 1e300, 0.1234567890123456789, -(2**200)])
def test_a_number_is_exact_beside_a_long_text(number: float) -> None:
    value = {"text": "9" * 100_000, "list": [{"n": number}, [number], "😀"]}
    assert repr(exact_json.read(exact_json.written(value))) == repr(value)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"NaN", b"[Infinity]", b"9" * 5000, b'"\\ud800"', b"[" * 1000 + b"]" * 1000]
)
def test_invalid_json_is_refused_also_beside_a_long_text(text: bytes) -> None:
    with pytest.raises(ValueError, match="at line 1"):
        exact_json.read(text)
    for length in (100_000, 1_000_000):
        long = b'["' + b"x" * length + b'",' + text + b"]"
        with pytest.raises(ValueError, match="at line 1"):
            exact_json.read(long)


@pytest.mark.parametrize("text", [b"1e400", b"[1.5, -1e400]", b'[{"b": [[], 1e999]}]'])
def test_a_number_above_what_a_double_takes_is_refused_naming_its_field(text: bytes) -> None:
    payload = exact_json.read_object(b'{"a": [1.5], "params": %b}' % text)
    with pytest.raises(Malformed) as caught:
        exact_json.check_depth(payload)
    assert caught.value.details == {"field": "params", "reason": "holds a number above 1.8e308"}


def nested(levels: int, kind: type = dict) -> Any:
    """`levels` objects or lists, one in another."""
    value: Any = kind()
    for _ in range(levels - 1):
        value = {"d": value, "e": 1} if kind is dict else ["d", value]
    return value


@pytest.mark.parametrize("kind", [dict, list])
def test_a_field_nested_too_deep_is_refused(kind: type) -> None:
    exact_json.check_depth({"params": nested(exact_json.MAX_DEPTH, kind)})
    with pytest.raises(Malformed) as caught:
        exact_json.check_depth({"params": nested(exact_json.MAX_DEPTH + 1, kind)})
    assert caught.value.details == {
        "field": "params",
        "reason": f"is nested more than {exact_json.MAX_DEPTH} levels deep",
    }
    assert caught.value.message.startswith("params: ")


@pytest.mark.parametrize("text", ["[", '{"a":', '["]", ', '{"]":"}", "a":'])
@pytest.mark.parametrize("before", ["", "深" * 5000])
def test_json_nested_deeper_than_any_reader_goes_is_refused_naming_the_limit(text: str, before: str) -> None:
    closing = "]" if text.startswith("[") else "}"
    body = f'{{"before": "{before}", "params": {text * 5000}1{closing * 5000}}}'.encode()
    with pytest.raises(Malformed, match=f"^the request is nested more than {exact_json.MAX_DEPTH} levels deep$"):
        exact_json.read_object(body)


@pytest.mark.parametrize("levels", [exact_json.MAX_DEPTH + 1, 300, 1000])
def test_a_field_that_is_nested_too_deep_is_named(levels: int) -> None:
    body = f'{{"before": 1, "params": {"[" * levels}{"]" * levels}}}'.encode()
    with pytest.raises(Malformed, match=f"^params: is nested more than {exact_json.MAX_DEPTH} levels deep$"):
        exact_json.check_depth(exact_json.read_object(body))


@pytest.mark.parametrize("text", ['{"a": "[' + "[" * 1000, '{"a": "' + '\\"' * 300_000, "[]" * 1000, "[1," * 100 + "?"])
def test_brackets_in_strings_and_closed_ones_are_no_nesting_of_what_is_no_json(text: str) -> None:
    began = time.process_time()
    with pytest.raises(Malformed, match=r"^the request is not JSON$"):
        exact_json.read_object(text.encode())
    assert time.process_time() - began < 1


def test_the_depth_of_unknown_fields_counts_too() -> None:
    with pytest.raises(Malformed) as caught:
        exact_json.check_depth({"more": nested(2000)})
    assert caught.value.details["field"] == "more"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("x" * (MAX_TEXT - 1), "x" * (MAX_TEXT - 1)), ("x" * MAX_TEXT, "x" * MAX_TEXT),
     ("x" * (MAX_TEXT + 1), "x" * (MAX_TEXT - 1) + "…"), ("x" * 10_000, "x" * (MAX_TEXT - 1) + "…")],
    ids=len,
)  # fmt: skip
def test_the_name_of_a_field_is_cut_where_it_is_too_long_to_be_shown(name: str, shown: str) -> None:
    with pytest.raises(Malformed) as caught:
        exact_json.check_depth({name: nested(exact_json.MAX_DEPTH + 1)})
    assert caught.value.details["field"] == shown


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_usual_nesting_is_accepted(payload: dict[str, Any]) -> None:
    exact_json.check_depth(payload)


def held(value: Any) -> int:
    """The values that `check_cost` counts in it."""
    parts: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(0, len(parts) - 1) + sum(map(held, parts))


@given(VALUES)
@example(['a,[{"\\', {'"b,': ["\\\\", '\\"', "]["]}])
async def test_json_is_refused_above_a_number_of_values_and_not_at_it(value: Any) -> None:
    text, most = exact_json.written(value), held(value)
    await exact_json.check_cost(text, most, "the request")
    if most:
        with pytest.raises(TooLarge) as caught:
            await exact_json.check_cost(text, most - 1, "the request")
        assert caught.value.message == f"the request holds more than {most - 1} values"
        assert caught.value.details == {"max_values": most - 1, "size": len(text)}


@pytest.mark.parametrize(
    "text", [b"7" * 2**20, b"[0.%b]" % (b"7" * 2**20), b" " * 2**20], ids=["digits", "float", "blank"]
)
async def test_long_numbers_count_as_many_values(text: bytes) -> None:
    await exact_json.check_cost(text, 2**20 // 64, "the answer")
    with pytest.raises(TooLarge):
        await exact_json.check_cost(text, 2**20 // 64 - 4, "the answer")


@pytest.mark.parametrize("text", ["\\", '"', '\\"', 'a"', "a,[{", "\\\\\\,", "中,"])
async def test_what_stands_in_a_long_string_is_no_value(text: str) -> None:
    for shift in range(4):
        value = [" " * shift, text * 300_000, [0] * 500, text * 100_000, {}]
        await exact_json.check_cost(exact_json.written(value), held(value), "the answer")
        with pytest.raises(TooLarge):
            await exact_json.check_cost(exact_json.written(value), held(value) - 1, "the answer")


def depth(value: Any) -> int:
    parts: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(depth, parts), default=0)


async def read_in_slices(text: bytes) -> int | None:
    """Its levels; None: it is not JSON."""
    try:
        levels, _ = await exact_json.outline(text, 10**6, "the answer", {"message"})
    except ValueError:
        return None
    return levels


@given(VALUES)
@example(['a,[{"\\', {'"b,': ["\\\\", '\\"', "]["]}])
async def test_the_levels_of_a_text_are_those_of_its_value(value: Any) -> None:
    text = exact_json.written(value)
    assert await read_in_slices(text) == depth(orjson.loads(text))


def emptied(value: Any) -> Any:
    """With all strings but "a" emptied."""
    match value:
        case dict():
            return {emptied(name): emptied(inner) for name, inner in value.items()}
        case list():
            return [emptied(inner) for inner in value]
        case str() if value != "a":
            return ""
    return value


@given(
    st.recursive(
        st.none() | st.text('ab"\\é'), lambda inner: st.lists(inner) | st.dictionaries(st.text("ab", max_size=2), inner)
    )
)
async def test_the_outline_of_a_text_is_its_value_without_the_other_strings(value: Any) -> None:
    assert (await exact_json.outline(exact_json.written(value), 10**6, "the answer", {"a"}))[1] == emptied(value)


@given(
    st.lists(
        st.sampled_from([*list('"\\[]{},:1 aun'), "\\u00e9", "\\ud83d", "\\ude00", "中", "\n", "true"]), max_size=20
    )
)
@example(['"', "a"])
@example(["\\", '"', "a", '"'])
@example(['"', "\\ud83d", '"'])
@example([])
async def test_a_text_that_is_read_in_slices_is_json_where_it_is_for_orjson(parts: list[str]) -> None:
    text = "".join(parts).encode()
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        assert await read_in_slices(text) is None
    else:
        assert await read_in_slices(text) is not None


@pytest.mark.parametrize("piece", ["\\n", "\\\\", '\\"', "\\u00e9", "\\ud83d\\ude00", "中", "😀"])
async def test_a_long_string_may_be_cut_between_slices_at_any_character(piece: str) -> None:
    for shift in range(12):
        text = '["' + "x" * shift + piece * (600_000 // len(piece.encode())) + '",[]]'
        assert await read_in_slices(text.encode()) == 2, shift
        assert await read_in_slices(text[:-5].encode()) is None, shift


@pytest.mark.parametrize("wrong", [b"\x80", b"\xf0\x9f", b"\\ud83d", b"\\ude00", b"\\x", b"\n"])
async def test_a_mistake_deep_in_a_long_string_is_found(wrong: bytes) -> None:
    assert await read_in_slices(b'["' + b"x" * 700_000 + wrong + b"x" * 700_000 + b'"]') is None


@pytest.mark.parametrize("written", ['"message"', '"\\u006dessage"', '"messag\\u0065"'])
async def test_a_string_is_found_also_where_a_slice_ends_in_it(written: str) -> None:
    """At 32,768 bytes a slice ends."""
    for shift in range(20):
        text = "[" + " " * (32_768 - shift) + written + ',["' + "x" * 40_000 + '"]]'
        assert await exact_json.outline(text.encode(), 10**6, "the answer", {"message"}) == (2, ["message", [""]]), (
            shift
        )
        other = text.replace("mess", "Mess").replace("\\u006d", "M")
        assert await exact_json.outline(other.encode(), 10**6, "the answer", {"message"}) == (2, ["", [""]]), shift


async def test_many_long_texts_delay_another_task_as_little_as_one() -> None:
    """In each round of the event loop one slice of one of them is read."""
    text = json.dumps(["x" * 20_000] * 50).encode()
    rounds, over = 0, asyncio.Event()

    async def watch() -> None:
        nonlocal rounds
        while not over.is_set():
            rounds += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(exact_json.outline(text, 10**6, "the answer", {"message"}) for _ in range(20)))
    over.set()
    await watching
    assert rounds >= 20 * len(text) // 32_768


@pytest.mark.parametrize(("text", "value"), [(b'{"a": 1}', {"a": 1}), (b"[1]", {}), (b"null", {})])
async def test_an_answer_that_is_to_be_changed_is_read(text: bytes, value: object) -> None:
    assert await exact_json.read_answer(text, "the answer") == value
    with pytest.raises(ValueError, match="trailing"):
        await exact_json.read_answer(text + b"}", "the answer")


async def test_an_answer_that_is_too_large_to_be_changed_is_refused() -> None:
    text = b'{"a":"' + b"x" * (exact_json.LARGEST_READ - 8) + b'"}'
    assert len(await exact_json.read_answer(text, "the answer")) == 1
    with pytest.raises(TooLarge, match="the answer is too large to be read here"):
        await exact_json.read_answer(text + b" ", "the answer")


async def test_other_tasks_run_while_a_long_text_is_counted() -> None:
    turns = 0

    async def bystander() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(bystander())
    await exact_json.check_cost(b'"' + b"x" * 2**24 + b'"', 1, "the answer")
    task.cancel()
    assert turns > 50
