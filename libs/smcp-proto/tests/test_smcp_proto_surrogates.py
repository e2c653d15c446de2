"""Halves of surrogate pairs in JSON: replaced where it comes from a server, named where it comes from an Agent."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.validation import HALF, HUGE, mended, unreadable_field

any_text = st.text(alphabet=st.characters(categories=["Cs", "Lu", "So"]), max_size=6)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (r'"\ud800"', "\ufffd"),
        (r'"a\udc00b"', "a\ufffdb"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd😀"),
        (r'"\ude00\ud83d"', "\ufffd\ufffd"),
        (r'"\\ud800"', r"\ud800"),
        (b'"\\uD800"', "\ufffd"),
    ],
)
def test_each_half_becomes_the_replacement_character_and_pairs_stay(text: str | bytes, whole: str) -> None:
    assert orjson.loads(mended(text)) == whole


def test_field_names_are_repaired_too_and_other_text_stays() -> None:
    sent = r'{"\ud800":[1,1.5,true,null,123456789012345678901234567890],"b":{"c":"\udfff"}}'
    assert json.loads(mended(sent)) == {
        "\ufffd": [1, 1.5, True, None, 123456789012345678901234567890],
        "b": {"c": "\ufffd"},
    }


@pytest.mark.parametrize("text", ["", "{", "x", "[NaN]", "[1e999]", '{"a":' * 100_000, b"\xff\xfe\x00"])
def test_otherwise_invalid_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        mended(text)


@given(st.recursive(any_text | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(any_text, inner)))
def test_repaired_json_is_valid_utf_8(value: object) -> None:
    assert orjson.loads(mended(json.dumps({"a": value}))).keys() == {"a"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (rb'{"a":1,"params":{"x":["\ud800"]},"c":"\ud800"}', ("params", HALF)),
        (rb'{"\ud800":1}', ("\ufffd", HALF)),
        (b'{"a":1,"params":{"x":[-1e400]},"c":1e400}', ("params", HUGE)),
        (b'{"a":1%b}' % (b"0" * 5000), ("a", HUGE)),
        (rb'{"a":"\ud83d\ude00"}', None),
        (rb'["\ud800"]', None),
        (rb'{"a":NaN}', None),
        (b"no json", None),
        (b'{"a":' * 100_000, None),
    ],
)
def test_the_first_field_that_cannot_be_read_is_named(text: bytes, found: tuple[str, str] | None) -> None:
    assert unreadable_field(text) == found
