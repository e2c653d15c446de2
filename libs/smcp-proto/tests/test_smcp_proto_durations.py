"""ISO 8601 durations of the configuration, and the pauses between retries."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from smcp_proto.backoff import Backoff, jittered
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


@pytest.mark.rule("computer.reconnect.{backoff,60s}")
def test_pauses_double_up_to_the_longest_and_begin_again_after_a_reset() -> None:
    usual = Backoff()
    assert max(usual.next() for _ in range(100)) <= 60.0
    backoff = Backoff(first_s=1.0, longest_s=6.0)
    for _ in range(100):
        pauses = [backoff.next() for _ in range(5)]
        assert all(step / 2 <= pause <= step for pause, step in zip(pauses, (1, 2, 4, 6, 6), strict=True))
        backoff.reset()


@pytest.mark.parametrize("draw", [lambda: Backoff(1.0, 1.0).next(), lambda: jittered(1.0)])
def test_pauses_of_processes_that_started_together_differ(draw: Callable[[], float]) -> None:
    drawn = [draw() for _ in range(1000)]
    assert max(drawn) - min(drawn) > 0.1


def test_a_regular_turn_is_at_most_a_fifth_shorter() -> None:
    assert all(8.0 <= jittered(10.0) <= 10.0 for _ in range(1000))
