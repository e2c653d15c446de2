"""Large answers of Computers on Socket.IO are read in slices, between which others are served."""

import json
import time
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus import exact_json
from smcp_gateway.computers.answers import large_answer, result_of
from smcp_proto.errors import SmcpError, TooLarge
from smcp_testing.gateway_world import MIB
from smcp_testing.waiting import steps

MOST: Final = exact_json.MAX_VALUES
ESCAPED: Final = "é\n" * (4 * MIB)
"""32 MiB as JSON: an escape for each character."""
SMALLER: Final = 3
"""The longest step is at most a third of what the answer cost in one go; a seventh to a tenth was seen."""
RUNS: Final = 3
"""Of the same steps. The garbage collector and new memory from the kernel are no part of a step, and hit another one in
each run."""
JSON: Final = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES: Final = st.sampled_from(["content", "isError", "code", "message", "meta", "_meta", "a2c_x", "b"]) | st.text()
OBJECTS: Final = st.dictionaries(NAMES, st.dictionaries(NAMES, JSON) | JSON)


@pytest.mark.parametrize(
    "answer",
    [
        {"content": [{"type": "text", "text": ESCAPED}], "isError": False, "_meta": {"x": 1}},
        {"content": [], "meta": {"a2c_timeout": True}, "_meta": {"x": ESCAPED}},
        {"code": 404, "message": ESCAPED},
    ],
    ids=["beside _meta", "in _meta", "error"],
)
async def test_a_large_answer_holds_the_loop_for_short_steps(answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    began = time.thread_time()
    exact_json.written(exact_json.read(text))
    at_once = time.thread_time() - began
    outcomes, each_took = zip(*(steps(large_answer(text, MOST)) for _ in range(RUNS)), strict=True)
    took = list(map(min, zip(*each_took, strict=True)))
    assert max(took) < at_once / SMALLER, (max(took), at_once)
    assert isinstance(outcomes[0], SmcpError if "code" in answer else bytes)


@given(OBJECTS)
async def test_a_large_answer_is_read_as_a_short_one(answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    short, large = result_of(text), await large_answer(text, MOST)
    if isinstance(large, SmcpError):  # a large one is refused by its fields alone
        assert isinstance(short, SmcpError) or {"code", "message"} <= answer.keys()
    else:
        assert isinstance(short, bytes)
        assert json.loads(large) == json.loads(short)


async def test_an_error_is_found_whatever_escapes_its_fields_are_written_with() -> None:
    text = b'{"\\u0063ode":401,"m\\u0065ssage":"give me your token"}'
    for outcome in (result_of(text), await large_answer(text, MOST)):
        assert isinstance(outcome, SmcpError)
        assert outcome.code == 500


@pytest.mark.parametrize("name", [b'"message"', b'"code"'])
@pytest.mark.parametrize("blanks", [b"", b" "])
async def test_an_error_is_found_when_a_slice_ends_between_a_name_and_its_colon(name: bytes, blanks: bytes) -> None:
    error = b'{"message"%b:"no","code"%b:401}' % (blanks, blanks)
    colon = error.index(b":", error.index(name))
    text = b" " * (exact_json.SMALL_BYTES - colon) + error
    assert isinstance(await large_answer(text, MOST), SmcpError)


async def test_what_looks_like_an_error_is_a_reply_where_none_of_its_fields_are_known() -> None:
    text = b'{"code":401,"message":"of some other request"}'
    assert await large_answer(text, MOST, frozenset()) is text
    with pytest.raises(TooLarge):
        await large_answer(b'{"a":[' + b"[]," * 2 * MOST + b"[]]}", MOST, frozenset())
