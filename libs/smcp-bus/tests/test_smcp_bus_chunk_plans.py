"""Cutting a large body into chunks, and checking an announced plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.bus import BodyTooLarge, TransferFailed
from smcp_bus.nats.transfers import (
    MAX_CHUNKS,
    Plan,
    announced_plan,
    chunk_head,
    chunk_index,
    index_of,
    is_chunk,
)
from smcp_bus.nats.wire import CHUNKS, SIZE

MIB = 1024 * 1024


# -- the plan


@given(total=st.integers(1, 10**9), chunk=st.integers(1, 10**6))
def test_a_plan_covers_the_body_exactly(total: int, chunk: int) -> None:
    plan = Plan(total, chunk)
    assert plan.chunk * (plan.count - 1) < total <= plan.chunk * plan.count
    assert plan.length(0) == min(chunk, total) or plan.count == 1
    assert plan.chunk * (plan.count - 1) + plan.length(plan.count - 1) == total


@given(total=st.integers(-5, 5000), count=st.integers(-5, 50), first=st.integers(0, 5000), limit=st.integers(0, 5000))
def test_an_accepted_plan_adds_up(total: int, count: int, first: int, limit: int) -> None:
    try:
        plan = announced_plan({SIZE: str(total), CHUNKS: str(count)}, first, limit)
    except (BodyTooLarge, TransferFailed):
        return
    assert plan.total <= limit
    assert sum(plan.length(index) for index in range(plan.count)) == total
    assert all(0 < plan.length(index) <= first for index in range(plan.count))


@pytest.mark.parametrize(
    ("total", "count", "first"),
    [("x", "2", 5), ("10", "", 5), ("10", "3", 5), ("10", "2", 0), ("10", "1", 10), ("-10", "2", 5), ("１０", "2", 5)],
)
def test_an_announced_plan_that_contradicts_itself_is_refused(total: str, count: str, first: int) -> None:
    with pytest.raises(TransferFailed):
        announced_plan({SIZE: total, CHUNKS: count}, first, 1000)


def test_a_plan_of_tiny_chunks_is_refused() -> None:
    with pytest.raises(TransferFailed):
        announced_plan({SIZE: str(MAX_CHUNKS + 1), CHUNKS: str(MAX_CHUNKS + 1)}, 1, 10 * MIB)


@given(st.integers(0, 99999))
def test_an_index_is_read_as_it_was_written(index: int) -> None:
    head = chunk_head(b"%d" % index)
    assert is_chunk(head)
    assert index_of(chunk_index(head)) == index
