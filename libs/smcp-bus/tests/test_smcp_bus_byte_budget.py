"""Limits: budgets of bytes and token buckets, shared between offices."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus import limits
from smcp_bus.limits import Buckets, ByteBudget, Grant, Rate, surplus


def test_shares_are_given_in_the_order_of_asking() -> None:
    budget, given_to = ByteBudget(10), []
    first = budget.ask(6, lambda: given_to.append("first"))
    large = budget.ask(8, lambda: given_to.append("large"))
    small = budget.ask(1, lambda: given_to.append("small"))
    assert given_to == ["first"]
    first.release()
    assert given_to == ["first", "large", "small"]
    large.release()
    small.release()
    assert budget.used == 0


def test_a_share_above_the_limit_is_given_alone() -> None:
    budget, given_to = ByteBudget(10), []
    small = budget.ask(1, lambda: given_to.append("small"))
    huge = budget.ask(100, lambda: given_to.append("huge"))
    assert given_to == ["small"]
    small.release()
    assert given_to == ["small", "huge"]
    huge.release()
    assert budget.used == 0


def test_a_cancelled_waiter_lets_the_next_one_through() -> None:
    budget, given_to = ByteBudget(10), []
    first = budget.ask(5, lambda: given_to.append("first"))
    large = budget.ask(10, lambda: given_to.append("large"))
    budget.ask(5, lambda: given_to.append("small"))
    large.release()
    assert given_to == ["first", "small"]
    assert budget.waiting == 0
    first.release()
    first.release()
    assert budget.used == 5


@given(limit=st.integers(1, 50), steps=st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=80))
def test_the_budget_is_never_overdrawn_and_is_whole_again_at_the_end(limit: int, steps: list[tuple[bool, int]]) -> None:
    budget = ByteBudget(limit)
    grants: list[Grant] = []
    for ask, number in steps:
        if ask:
            grants.append(budget.ask(number, lambda: None))
        elif grants:
            grants.pop(number % len(grants)).release()
        assert 0 <= budget.used <= limit
        assert budget.used == sum(grant.size for grant in grants if grant.given)
    for grant in grants:
        grant.release()
    assert budget.used == budget.waiting == 0


def test_offices_that_wait_take_turns() -> None:
    given_to: list[str] = []
    budget = ByteBudget(8)
    first = budget.ask(8, lambda: given_to.append("first"))
    grants = [budget.ask(1, partial(given_to.append, office + str(n)), office) for office in "ab" for n in range(2)]
    first.release()
    assert given_to == ["first", "a0", "b0", "a1", "b1"]
    for grant in grants:
        grant.release()
    assert budget.used == 0


def test_an_office_that_gives_nothing_back_leaves_room_for_others() -> None:
    given_to: list[str] = []
    budget = ByteBudget(128)
    for office in ("slow", "slower"):
        for number in range(4):
            budget.ask(32, partial(given_to.append, f"{office} {number}"), office)
    small = budget.ask(2, partial(given_to.append, "small"), "other")
    large = budget.ask(28, partial(given_to.append, "large"), "other")
    assert given_to == ["slow 0", "slow 1", "slower 0", "small", "large"]
    small.release()
    large.release()
    assert budget.used == 96  # half went to the first, while it was alone, and a quarter to the next one


def test_what_cannot_wait_is_taken_or_not() -> None:
    budget = ByteBudget(16)
    assert [budget.take(4, "a") is not None for _ in range(4)] == [True, True, False, False]
    other = budget.take(8, "b")
    assert other is not None
    assert budget.take(1, "c") is None
    other.release()
    assert budget.take(8, "c") is not None
    assert budget.waiting == 0


OFFICES = "abc"
STEPS = st.lists(
    st.tuples(st.sampled_from((*OFFICES, "release")), st.integers(1, 12)),
    min_size=80,  # fewer hardly fill it
    max_size=120,
)


@given(limit=st.integers(10, 40), steps=STEPS)
def test_no_office_starves_and_none_has_more_than_its_share_while_others_wait(
    limit: int, steps: list[tuple[str, int]]
) -> None:
    budget = ByteBudget(limit)
    asked: list[Grant] = []
    passed: dict[Grant, list[str]] = {}
    """What others were given since then, by the request for which an office waits that holds nothing."""

    def held(office: str) -> int:
        return sum(grant.size for grant in asked if grant.given and grant.office == office)

    def observe(before: list[Grant]) -> None:
        """`before`: what had been given."""
        new = [grant for grant in asked if grant.given and grant not in before]
        assert budget.used == sum(grant.size for grant in asked if grant.given) <= limit
        for grant in new:
            office, size = grant.office, held(grant.office)
            alone = size == grant.size
            assert alone or size <= limit // 4 or 2 * budget.used <= limit + 2 * sum(g.size for g in new if g != grant)
        for office in OFFICES:
            waiting = [grant for grant in asked if not grant.given and grant.office == office]
            if waiting and not held(office):
                mine = passed.setdefault(waiting[0], [])
                mine += [grant.office for grant in new]
                assert len(mine) == len(set(mine)), "an office had two turns while another one waited for its first"
        for grant in [grant for grant in passed if grant.given]:
            del passed[grant]

    for step, number in steps:
        before = [grant for grant in asked if grant.given]
        if step != "release":
            asked.append(budget.ask(number, lambda: None, step))
        elif asked:
            gone = asked.pop(number % len(asked))
            passed.pop(gone, None)
            gone.release()
        observe(before)
    while asked:
        given = [grant for grant in asked if grant.given]
        assert given, "requests wait although nothing is given out"
        for grant in given:
            grant.release()
            asked.remove(grant)
    assert budget.used == budget.waiting == 0


def test_an_office_with_less_than_an_equal_share_of_a_cache_loses_nothing() -> None:
    entries = [(("small", "1"), 10), *((("large", f"{number}"), 30) for number in range(4))]
    assert surplus(entries, 100) == [("large", "0")]
    assert surplus(entries, 130) == []
    assert surplus([(("alone", "1"), 50), (("alone", "2"), 50)], 60) == [("alone", "1")]


@given(
    limit=st.integers(0, 60),
    entries=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40)), max_size=40),
)
def test_what_is_dropped_of_a_cache_is_the_oldest_of_the_offices_that_have_more_than_the_others(
    limit: int, entries: list[tuple[str, int]]
) -> None:
    aged = [((office, str(number)), size) for number, (office, size) in enumerate(entries)]
    dropped = surplus(aged, limit)
    left = [(key, size) for key, size in aged if key not in dropped]
    assert sum(size for _, size in left) <= limit
    offices = {office for office, _ in entries}
    before = {office: sum(size for key, size in aged if key[0] == office) for office in offices}
    for office in offices:
        mine = [key for key, _ in aged if key[0] == office]
        gone = [key for key in mine if key in dropped]
        assert gone == mine[: len(gone)]
        assert not gone or before[office] > limit // len(offices)
    assert bool(dropped) == (sum(before.values()) > limit)


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
