"""Errors: the "why" of a refused join or leave, code and sentence in one text; and what their details say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.errors import ERRORS, ErrorBody, NotAllowed, SmcpError, read_refusal, refusal


@given(st.sampled_from(sorted(ERRORS)), st.text(max_size=40))
def test_code_and_sentence_of_a_refusal_are_read_back(code: int, message: str) -> None:
    assert read_refusal(refusal(ErrorBody(code=code, message=message))) == (code, message)


def test_a_refusal_is_the_code_a_space_and_the_sentence() -> None:
    assert refusal(NotAllowed("the office has an Agent already").body()) == "403 the office has an Agent already"


@pytest.mark.parametrize(
    "why",
    [
        "", "403", "Agent already in room", "room 403 is full", " 403 no", "403\tno", "299 no", "40 no", "4030 no",
        "-403 no", "+403 no", "4_03 no", "٤٠٣ no", "⁴⁰³ no", "x403 no",
    ],
)  # fmt: skip
def test_the_why_of_another_server_has_no_code_and_is_left_as_it_is(why: str) -> None:
    assert read_refusal(why) == (None, why)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({"smcp_code": "SMCP_RATE_LIMITED"}, "SMCP_RATE_LIMITED"),
        ({}, None),
        ({"smcp_code": 429}, None),
        ({"x": "y"}, None),
    ],
)
def test_an_error_says_what_went_wrong_with_a_resource_where_its_details_do(
    details: dict[str, object], said: str | None
) -> None:
    assert SmcpError("no", details=details).smcp_code == said
