"""The trace id of a req_id."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smcp_proto.catalog import TRACE_ID_KEY, trace_id

text = st.text(max_size=40)


@pytest.mark.rule("answers.traces.id.req_id")
@given(st.integers(1, 2**128 - 1), text, text)
def test_32_lower_case_hex_digits_are_the_id(number: int, office: str, agent: str) -> None:
    assert trace_id(office, agent, f"{number:032x}") == number


@given(text, text, text)
def test_every_id_is_a_legal_trace_id_and_always_the_same(office: str, agent: str, req_id: str) -> None:
    number = trace_id(office, agent, req_id)
    assert 0 < number < 2**128
    assert trace_id(office, agent, req_id) == number


@given(st.tuples(text, text, text), st.tuples(text, text, text))
def test_other_requests_have_other_ids(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assume(one != other)
    assert trace_id(*one) != trace_id(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c", "d"), ("a", "bc", "d")),
        (("a", "b", "cd"), ("a", "bc", "d")),
        (("", "a", "b"), ("a", "", "b")),
        (("a\x00", "b", "c"), ("a", "\x00b", "c")),
    ],
)
def test_parts_are_not_mixed_up(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert trace_id(*one) != trace_id(*other)


@pytest.mark.rule("answers.traces.id.hash")
@pytest.mark.parametrize("req_id", ["0" * 32, "A" * 32, "a" * 31, "a" * 33, "g" * 32, "a" * 32 + "\n", "١" * 32, ""])
def test_a_req_id_that_is_no_trace_id_is_hashed_with_office_and_agent(req_id: str) -> None:
    assert trace_id("o", "a", req_id) != trace_id("o", "b", req_id)
    assert trace_id("o", "a", req_id) != trace_id("p", "a", req_id)


@pytest.mark.parametrize("req_id", ["\ud800", "call-\udfff-1"])
def test_a_lone_surrogate_in_a_req_id_has_a_trace_id(req_id: str) -> None:
    assert 0 < trace_id("o", "a", req_id) < 2**128
    assert trace_id("o", "a", req_id) != trace_id("o", "a", req_id + "x")


@pytest.mark.rule("answers.traces.id.hash")
def test_the_hash_of_a_req_id_never_changes() -> None:
    """Another process, another version: the same trace."""
    assert f"{trace_id('office', 'agent', 'call-1'):032x}" == "733e08be5d89393689d73deb44a2afb1"
    assert TRACE_ID_KEY == "smcp.trace_id"
