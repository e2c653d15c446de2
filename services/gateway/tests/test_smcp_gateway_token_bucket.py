"""The token bucket: pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_gateway.limits.kept_buckets import KeptBuckets
from smcp_gateway.limits.token_bucket import Rate, TokenBucket

rates = st.builds(Rate, st.floats(0.01, 10_000), st.integers(1, 100))
pauses = st.lists(st.floats(0, 30), max_size=200)


def taken(bucket: TokenBucket, now: float) -> bool:
    if bucket.wait(now) > 0:
        return False
    bucket.take(now)
    return True


def test_it_gives_what_it_saved_and_then_as_much_as_it_gets() -> None:
    bucket = TokenBucket(Rate(2.0, 3), 100.0)
    assert [taken(bucket, 100.0) for _ in range(5)] == [True, True, True, False, False]
    assert bucket.wait(100.0) == pytest.approx(0.5)
    assert bucket.wait(100.2) == pytest.approx(0.3)
    assert [taken(bucket, 100.5) for _ in range(2)] == [True, False]
    assert [taken(bucket, 1000.0) for _ in range(4)] == [True, True, True, False]


@pytest.mark.rule("computer.resources.server.limits.session")
@given(rates, pauses)
def test_in_no_span_of_time_it_gives_more_than_what_it_saves_and_gets(rate: Rate, steps: list[float]) -> None:
    bucket, now, given_at = TokenBucket(rate, 0.0), 0.0, list[float]()
    for step in steps:
        now += step
        if taken(bucket, now):
            given_at.append(now)
    for first, start in enumerate(given_at):
        for last in range(first, len(given_at)):
            span = given_at[last] - start
            assert last - first + 1 <= rate.burst + span * rate.per_s * (1 + 1e-9) + 1e-6


@pytest.mark.rule("answers.resources.limits.answer")
@given(rates, pauses)
def test_who_waits_as_long_as_it_says_gets_one_and_not_sooner(rate: Rate, steps: list[float]) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    for step in steps:
        now += step / rate.per_s / 10
        wait = bucket.wait(now)
        assert 0 <= wait <= 1 / rate.per_s * (1 + 1e-9)
        if wait > 1e-6 / rate.per_s:
            assert bucket.wait(now + 0.99 * wait) > 0
        now += wait * (1 + 1e-6) + 1e-9
        assert taken(bucket, now)


@given(rates, pauses)
def test_asking_takes_nothing(rate: Rate, steps: list[float]) -> None:
    asked, unasked, now = TokenBucket(rate, 0.0), TokenBucket(rate, 0.0), 0.0
    for step in steps:
        now += step
        for _ in range(3):
            asked.wait(now)
        assert taken(asked, now) == taken(unasked, now)


@given(rates, st.floats(0, 1e9))
def test_a_clock_that_is_a_moment_behind_takes_nothing_away(rate: Rate, start: float) -> None:
    bucket = TokenBucket(rate, start)
    bucket.take(start)
    before = bucket.wait(start)
    assert bucket.wait(start - 1) == before


@pytest.mark.rule("answers.resources.limits.end")
def test_a_bucket_is_kept_until_it_is_full_and_of_too_many_the_one_goes_that_was_used_least_recently() -> None:
    kept = KeptBuckets(Rate(1.0, 3), most=3)
    for owner in ("a", "b", "c"):
        assert taken(kept.of(owner, 0.0), 0.0)
    assert taken(kept.of("a", 0.5), 0.5)
    assert taken(kept.of("d", 0.5), 0.5)  # in place of "b"
    assert len(kept) == 3
    assert [taken(kept.of("a", 0.5), 0.5) for _ in range(2)] == [True, False]
    assert [taken(kept.of("c", 1.5), 1.5) for _ in range(4)] == [True] * 3 + [False]
    assert len(kept) == 3
    assert taken(kept.of("e", 10.0), 10.0)  # all others are full by then
    assert len(kept) == 1


@given(rates, pauses)
def test_a_bucket_that_is_full_gives_what_a_new_one_gives(rate: Rate, steps: list[float]) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    for step in steps:
        now += step
        if bucket.is_full(now):
            new = TokenBucket(rate, now)
            assert bucket.wait(now) == new.wait(now) == 0
        else:
            assert not bucket.is_full(now - step)
        taken(bucket, now)
    assert bucket.is_full(now + rate.burst / rate.per_s * (1 + 1e-9) + 1e-6)


@pytest.mark.parametrize(("per_s", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0), (float("nan"), 1)])
def test_a_rate_that_gives_nothing_is_none(per_s: float, burst: int) -> None:
    with pytest.raises(ValueError, match="gives something"):
        Rate(per_s, burst)
