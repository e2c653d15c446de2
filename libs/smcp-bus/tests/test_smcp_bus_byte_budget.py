"""The budget of bytes in flight."""

from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.byte_budget import ByteBudget, Grant


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
