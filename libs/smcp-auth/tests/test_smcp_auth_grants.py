"""Which places a key or token is for: patterns, and the decision."""

import re
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from smcp_auth.grants import Grants, decide
from smcp_proto.member_names import check_pattern, matches
from smcp_proto.validation import malformed


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "", True),
        ("*", "anything at all", True),
        ("lab", "lab", True),
        ("lab", "Lab", False),
        ("lab", "lab 1", False),
        ("lab-*", "lab-", True),
        ("lab-*", "lab-1", True),
        ("lab-*", "my lab-1", False),
        ("*-1", "a-1-1", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("r?ck", "rock", True),
        ("r?ck", "rck", False),
        ("?", "深", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        (r"a\?\\", "a?\\", True),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a.c", "abc", False),
        ("**", "", True),
        ("caf\u00e9", "cafe\u0301", True),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) is fits


@given(st.text(alphabet="ab*?", max_size=12), st.text(alphabet="ab", max_size=12))
def test_a_pattern_means_what_the_same_regular_expression_means(pattern: str, name: str) -> None:
    meaning = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern)
    assert matches(pattern, name) is (re.fullmatch(meaning, name, re.DOTALL) is not None)


def test_no_pattern_takes_long() -> None:
    assert not matches("*a" * 128, "a" * 127 + "b")


@pytest.mark.parametrize("pattern", ["a\\", "a\nb", "\ud800"])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"backslash|character"):
        check_pattern(pattern)


Role = Literal["agent", "computer"]


@pytest.mark.parametrize(
    ("office", "role", "name", "field"),
    [
        ("lab-1", "agent", "anna", None),
        ("kitchen", "agent", "anna", None),
        ("cellar", "agent", "anna", "office_id"),
        ("lab-1", "computer", "anna", "role"),
        ("lab-1", "agent", "eve", "name"),
        ("cellar", "computer", "eve", "office_id"),
    ],
)
def test_a_seat_is_granted_when_office_role_and_name_match(
    office: str, role: Role, name: str, field: str | None
) -> None:
    grants = Grants(offices=("lab-*", "kitchen"), roles=("agent",), names=("ann?",))
    refusal = decide(grants, office=office, role=role, name=name)
    assert (None if refusal is None else refusal.details) == (None if field is None else {"field": field})


def test_a_claim_without_roles_and_names_grants_all_of_them() -> None:
    grants = Grants.model_validate({"offices": ["lab"]})
    for role in ("agent", "computer"):
        assert decide(grants, office="lab", role=role, name="whoever") is None
    assert decide(grants, office="lab 2", role="agent", name="whoever") is not None


@pytest.mark.parametrize(
    ("claim", "named"),
    [
        ({}, "offices"),
        ({"offices": []}, "offices"),
        ({"offices": "lab"}, "offices"),
        ({"offices": [5]}, "offices"),
        ({"offices": ["a\\"]}, "offices"),
        ({"offices": ["lab"], "roles": ["admin"]}, "roles"),
        ({"offices": ["lab"], "roles": []}, "roles"),
        ({"offices": ["lab"], "names": [""]}, "names"),
        ({"offices": ["lab"], "only_on": "monday"}, "only_on"),
    ],
)
def test_an_invalid_claim_is_refused_naming_the_field(claim: Any, named: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Grants.model_validate(claim)
    assert named in malformed(refused.value).message
