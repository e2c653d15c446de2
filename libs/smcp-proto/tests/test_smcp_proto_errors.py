"""Errors: the "why" of a refused join or leave, code and sentence in one text; and what their details say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.errors import ERRORS, ErrorBody, NotAllowed, SmcpError, read_refusal, refusal


@given(st.sampled_from(sorted(ERRORS)), st.text(max_size=40))
def test_the_code_and_message_of_a_refusal_are_read_back(code: int, message: str) -> None:
    assert read_refusal(refusal(ErrorBody(code=code, message=message))) == (code, message)


def test_a_refusal_is_written_as_code_space_message() -> None:
    assert refusal(NotAllowed("the office has an Agent already").body()) == "403 the office has an Agent already"


@pytest.mark.parametrize(
    "why",
    [
        "", "403", "Agent already in room", "room 403 is full", " 403 no", "403\tno", "299 no", "40 no", "4030 no",
        "-403 no", "+403 no", "4_03 no", "٤٠٣ no", "⁴⁰³ no", "x403 no", f"{'9' * 5000} no",
    ],
)  # fmt: skip
def test_a_refusal_text_without_a_code_is_kept_unchanged(why: str) -> None:
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
def test_an_errors_smcp_code_comes_from_its_details(details: dict[str, object], said: str | None) -> None:
    assert SmcpError("no", details=details).smcp_code == said
