"""ISO 8601 durations of the configuration."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from smcp_proto.schemas.config import parse_duration


@pytest.mark.rule("data-structures.MCPServerStreamableHttpParameters.durations")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT30S", 30), ("PT5M", 300), ("PT300S", 300), ("PT1H", 3600), ("P1D", 86_400), ("P1W", 604_800),
        ("PT0.5S", 0.5), ("PT0,5S", 0.5), ("P1DT2H3M4S", 93_784), ("PT1M30S", 90), ("PT30.0S", 30),
    ],
)  # fmt: skip
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.rule("data-structures.MCPServerStreamableHttpParameters.durations")
@pytest.mark.parametrize(
    "text",
    [
        "", "P", "PT", "30", "30s", "PT30", "T30S", "P30S", "PT-1S", "-PT1S", "P1Y", "P1M", "pt1s",
        "PT1S ", "PT1S\n", "PT0S", "P0D", "P1DT", "PT٣S", "P" + "9" * 50 + "D", "P" + "9" * 500 + "D",
    ],
)  # fmt: skip
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_a_duration_is_written_in_at_most_64_characters() -> None:
    assert parse_duration("PT" + "1".zfill(61) + "S") == timedelta(seconds=1)
    with pytest.raises(ValueError, match="duration"):
        parse_duration("PT" + "1".zfill(62) + "S")


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=300)))
def test_a_duration_written_by_pydantic_is_read(duration: timedelta) -> None:
    written = TypeAdapter(timedelta).dump_python(duration, mode="json")
    assert abs(parse_duration(written) - duration) <= timedelta(microseconds=1)


@given(st.text("PTWDHMS0123456789.,-", max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        duration = parse_duration(text)
    except ValueError:
        return
    assert duration > timedelta()
