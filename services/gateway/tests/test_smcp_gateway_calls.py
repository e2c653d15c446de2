"""The table of pending calls is emptied, whatever ends a call."""

import asyncio

import pytest

from smcp_bus.dispatch import RawJson
from smcp_gateway.calls.table import CANCELLED, CallTable, PendingCall
from smcp_proto.errors import Unavailable
from smcp_testing.waiting import eventually

DONE = RawJson(b"{}")


def pending(req_id: str = "r", session: str = "s", *, tracked: bool = True) -> PendingCall:
    return PendingCall(session=session, office="o", computer="c", agent="a", req_id=req_id, tracked=tracked)


async def never() -> RawJson:
    await asyncio.Event().wait()
    return DONE


async def started(table: CallTable, call: PendingCall) -> "asyncio.Task[RawJson]":
    task = asyncio.create_task(table.run(call, never()))
    await eventually(lambda: call.task is not None)
    return task


async def test_an_answer_ends_a_call() -> None:
    table = CallTable()

    async def work() -> RawJson:
        assert len(table) == 1
        return DONE

    assert await table.run(pending(), work()) is DONE
    assert len(table) == 0


@pytest.mark.rule("answers.calls.cancel.once")
async def test_the_first_verdict_settles_a_call_and_its_task_goes_on() -> None:
    table, call = CallTable(), pending()
    task = await started(table, call)
    table.settle(call, Unavailable("gone", details={"may_have_run": True}))
    table.settle(call, CANCELLED)
    with pytest.raises(Unavailable, match="gone"):
        await task
    assert task.cancelling() == 0
    assert len(table) == 0


@pytest.mark.rule("answers.calls.cancel.gateway")
async def test_a_cancelled_call_is_answered_by_the_gateway_when_its_computer_is_too_slow() -> None:
    table, call, other = CallTable(), pending(), pending("other")
    task, bystander = await started(table, call), await started(table, other)
    table.cancel("s", "r", now=10.0)
    table.settle_overdue(10.9)
    assert call.verdict is None
    table.settle_overdue(11.0)  # its Computer had one second
    assert await task is CANCELLED
    assert list(table) == [other]
    bystander.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bystander


async def test_another_session_cannot_cancel_a_call() -> None:
    table, call = CallTable(), pending()
    task = await started(table, call)
    table.cancel("somebody else", "r", now=0.0)
    assert call.cancelled_at is None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(table) == 0


async def test_calls_of_a_disconnected_client_end_without_an_answer() -> None:
    table, mine, theirs = CallTable(), pending(), pending(session="t")
    task, other = await started(table, mine), await started(table, theirs)
    assert table.abandon("s") == [mine]
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(table) == [theirs]
    table.abandon("t")
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_a_cancel_affects_only_tool_calls_and_can_be_taken_back() -> None:
    table, call, tools = CallTable(), pending(), pending(tracked=False)
    tasks = [await started(table, call), await started(table, tools)]
    cancelled = table.cancel("s", "r", now=10.0)
    assert call.cancelled_at == 10.0
    assert tools.cancelled_at is None
    table.take_back_cancel(cancelled)
    table.settle_overdue(11.0)
    assert call.verdict is None
    table.abandon("s")
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*tasks, return_exceptions=True))
