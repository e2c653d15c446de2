"""The cursor of a list over an office: pure."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_gateway.handlers.resources import OfficeCursor, read_cursor
from smcp_proto.errors import Malformed
from smcp_proto.member_names import check_name
from smcp_proto.schemas.resources import MAX_CURSOR

VERB = "resources_list"
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).map(check_name)
inner = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def refused(text: str, verb: str = VERB) -> None:
    with pytest.raises(Malformed) as error:
        read_cursor(text, verb)
    assert error.value.details["field"] == "payload.params.cursor"
    assert error.value.message == "payload.params.cursor: is none that this list gave"


@pytest.mark.rule("computer.resources.cursor")
@given(names, inner)
def test_a_written_cursor_can_be_read(name: str, cursor: str | None) -> None:
    written = OfficeCursor(VERB, name, cursor)
    text = written.write()
    assert text is not None
    assert text.isascii()
    assert read_cursor(text, VERB) == written
    refused(text, "resources_templates_list")


@pytest.mark.rule("answers.resources.office.cursor")
@given(st.text(max_size=60) | st.text("abcXYZ019-_=", max_size=60))
def test_any_other_text_is_refused_naming_the_field(text: str) -> None:
    refused(text)


@pytest.mark.parametrize(
    "value",
    [
        None, 1, "office", [], {}, ["office", VERB, "box"], ["office", VERB, "box", 1], ["office", VERB, "", None],
        ["office", VERB, 7, None], ["office", VERB, "a\u0000b", None], ["office", VERB, "x" * 129, None],
        ["office", "tool_call", "box", None], ["other", VERB, "box", None], ["office", VERB, "box", None, 1],
        ["r", "server", 3, "mark"],
    ],
)  # fmt: skip
def test_a_forged_cursor_is_refused(value: Any) -> None:
    refused(encoded(value))


def test_a_deeply_nested_cursor_is_refused() -> None:
    refused(base64.urlsafe_b64encode(b"[" * 6000).decode())


def test_a_computers_cursor_that_is_too_long_gives_no_office_cursor() -> None:
    assert OfficeCursor(VERB, "box", "x" * 6000).write() is not None
    assert OfficeCursor(VERB, "box", "x" * MAX_CURSOR).write() is None
