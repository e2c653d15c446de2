"""The pauses between retries."""

from collections.abc import Callable

import pytest

from smcp_proto.backoff import Backoff, jittered


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_reset() -> None:
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
