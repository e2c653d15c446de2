"""Foreign text for a terminal, and instants of ISO 8601 with any offset (finder.txt, last_modified)."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.text import instant, printable, printable_json

UNSEEN = "".join(map(chr, [*range(0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]))
OBEYED = set(UNSEEN) - set(map(chr, range(0x20, 0x7F))) - {"\t"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m \x9b1mbold\x1b]52;c;eA==\x07!", "red bold!"),
        ("a\x07b\x00c\x1bd", "a�b�c�d"),
        ("one\r\ntwo\rthree\u2028four\x85five\n", "one two three four five "),
        ("txt\u202eexe\u2066 \u200bx\ufeff\ud800", "txt�exe� �x��"),
        ("a\ufe00b\U000e0041c\U000e01efd\u3164e\u115ff\u2800g\u034fh\u00ad", "a�b�c�d�e�f�g�h�"),
        ("❤\ufe0f", "❤\ufe0f"),
        ("a\tb 深 👩\u200d🔬 می\u200cخواهم", "a\tb 深 👩\u200d🔬 می\u200cخواهم"),
    ],
)
def test_what_a_terminal_obeys_or_hides_is_not_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_of_all_kinds_stay_where_a_text_may_have_lines() -> None:
    assert printable("one\r\ntwo\u2028\tthree\n", newline="\n") == "one\ntwo\n\tthree\n"


@given(st.text(alphabet=st.sampled_from(UNSEEN + "[];m0深")))
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert not OBEYED & set(printable(text))
    assert not OBEYED & set(printable_json([text, {text: text}], indent=None))


def test_json_for_a_terminal_is_read_back_as_it_was() -> None:
    value = {UNSEEN: [UNSEEN, "\ud800", "深\u200d🙂", "\U000e0041\U000e0100"]}
    text = printable_json(value)
    assert json.loads(text) == value
    assert "\\udb40\\udc41\\udb40\\udd00" in text
    assert "深\u200d🙂" in text
    assert printable_json([1, 2], indent=None) == "[1, 2]"


AT = 1768465800_000000
"""2026-01-15T08:30:00Z."""


@pytest.mark.rule("answers.finder.last_modified")
@pytest.mark.parametrize(
    "text",
    [
        "2026-01-15T08:30:00Z",
        "2026-01-15T08:30:00z",
        "2026-01-15t08:30:00z",
        "2026-01-15 08:30:00Z",
        "2026-01-15T08:30Z",
        "20260115T083000Z",
        "20260115T0830Z",
        "2026-W03-4T08:30:00Z",
        "2026-01-15T08:30:00+00:00",
        "2026-01-15T08:30:00-00:00",
        "2026-01-15T16:30:00+08:00",
        "2026-01-15T16:30:00+0800",
        "2026-01-15T16:30:00+08",
        "2026-01-15T14:00:00+05:30",
        "2026-01-14T22:30:00-10:00",
        "2026-01-15T08:30:00.000Z",
        "2026-01-15T08:30:00,000Z",
        "2026-01-15T08:30:00.000000999Z",
        "2026-01-15T08:30:00",
    ],
)
def test_one_instant_has_many_forms(text: str) -> None:
    assert instant(text) == AT


def test_a_date_is_its_beginning() -> None:
    assert instant("2026-01-15") == AT - (8 * 60 + 30) * 60 * 1_000_000


def test_fractions_of_a_second_count_to_the_microsecond() -> None:
    assert instant("2026-01-15T08:30:00.000001Z") == AT + 1
    assert instant("2026-01-15T08:30:00.5+00:00") == AT + 500_000


def test_the_ends_of_the_calendar_are_instants_with_any_offset() -> None:
    first, last = instant("0001-01-01T00:00:00+14:00"), instant("9999-12-31T23:59:59-12:00")
    assert first is not None
    assert last is not None
    assert first < 0 < last


@pytest.mark.parametrize(
    "text",
    [
        "2026W01x15T-12",
        "2026-W01x15T-12",
        "", " ", "yesterday", "2026", "2026-1-5", "2026-13-01", "2026-02-30", "2026-01-15T25:00:00Z", "2026-01-15T",
        "2026-01-15T08:30:00+25:00", "2026-01-15x08:30:00Z", "1768465800", "15.01.2026",
        "２０２６-01-15", "2026-01-15T08:30:00Z\n", "+2026-01-15", "2026-01-15T08:30:00\ud800",
    ],
)  # fmt: skip
def test_an_invalid_instant_cannot_be_read(text: str) -> None:
    assert instant(text) is None


offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets)  # noqa: DTZ001


@pytest.mark.rule("answers.finder.last_modified")
@given(moments, moments)
def test_the_order_is_that_of_the_instants(first: datetime, second: datetime) -> None:
    ours = [instant(moment.isoformat()) for moment in (first, second)]
    assert None not in ours
    assert ours == [
        (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) for moment in (first, second)
    ]


@given(st.text() | st.text("0123456789-:TWZ+., ", min_size=8, max_size=30))
def test_any_text_is_an_instant_or_none(text: str) -> None:
    assert isinstance(instant(text), int | None)
