"""Token buckets."""

import pytest

from smcp_bus import limits
from smcp_bus.limits import Buckets, Rate


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    now = 100.0
    buckets = Buckets(Rate(2.0, burst_s=1.5), lambda: now)
    assert [buckets.take("o") for _ in range(5)] == [0, 0, 0, pytest.approx(0.5), pytest.approx(0.5)]
    assert buckets.take("another") == 0
    now = 100.5
    assert [buckets.take("o") for _ in range(2)] == [0, pytest.approx(0.5)]
    now = 1000.0
    assert [buckets.take("o") for _ in range(4)] == [0, 0, 0, pytest.approx(0.5)]


def test_one_may_always_be_taken_from_a_full_bucket_and_without_a_rate_any_number() -> None:
    rare = Buckets(Rate(0.1, burst_s=1.0), lambda: 0.0)
    assert [rare.take("o") for _ in range(2)] == [0, pytest.approx(10.0)]
    free = Buckets(Rate(0.0, burst_s=1.0), lambda: 0.0)
    assert {free.take("o") for _ in range(1000)} == {0}


def test_full_buckets_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_AT", 4)
    now = 0.0
    buckets = Buckets(Rate(1.0, burst_s=2.0), lambda: now)
    for number in range(3):
        buckets.take(f"o{number}")
    now = 10.0
    buckets.take("last")
    assert len(buckets) == 1
