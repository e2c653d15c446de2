"""Instants of ISO 8601 with any offset (finder.txt, last_modified), compared as instants."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.sorting import instant

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
