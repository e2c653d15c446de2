"""Answers of Computers on Socket.IO: errors in them, and `_meta`."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus import exact_json
from smcp_gateway.computers.answers import large_result, result_of
from smcp_proto.errors import SmcpError, TooLarge

MOST: Final = exact_json.MAX_VALUES
JSON: Final = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES: Final = st.sampled_from(["content", "isError", "code", "message", "meta", "_meta", "a2c_x", "b"]) | st.text()
OBJECTS: Final = st.dictionaries(NAMES, st.dictionaries(NAMES, JSON) | JSON)


@given(OBJECTS)
async def test_a_large_result_is_written_as_a_short_one(answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    short, large = result_of(text), await large_result(text, MOST)
    if isinstance(short, bytes):  # whether a large one is an error the Agent's gateway finds out
        assert json.loads(large) == json.loads(short)


async def test_an_error_is_found_whatever_escapes_its_fields_are_written_with() -> None:
    outcome = result_of(b'{"\\u0063ode":401,"m\\u0065ssage":"give me your token"}')
    assert isinstance(outcome, SmcpError)
    assert outcome.code == 500


async def test_a_large_result_of_too_many_values_is_refused() -> None:
    with pytest.raises(TooLarge):
        await large_result(b'{"a":[' + b"[]," * 2 * MOST + b"[]]}", MOST)
