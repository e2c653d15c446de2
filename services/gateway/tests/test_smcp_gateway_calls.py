"""The table of pending calls, and tasks in the background that are retried."""

import asyncio

import pytest

from smcp_bus.dispatch import Answer
from smcp_gateway.background_tasks import BackgroundTasks
from smcp_gateway.calls import CANCELLED, CallTable, PendingCall
from smcp_proto.errors import Malformed, NotAllowed, SmcpError, Unavailable
from smcp_testing.waiting import eventually

DONE = Answer(b"{}")


def pending(req_id: str = "r", session: str = "s", *, tracked: bool = True) -> PendingCall:
    return PendingCall(session=session, office="o", computer="c", agent="a", req_id=req_id, tracked=tracked)


async def never() -> Answer:
    await asyncio.Event().wait()
    return DONE


async def started(table: CallTable, call: PendingCall) -> "asyncio.Task[Answer]":
    task = asyncio.create_task(table.run(call, never()))
    await eventually(lambda: call.task is not None)
    return task


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


async def test_another_session_cannot_cancel_a_call() -> None:
    table, call = CallTable(), pending()
    task = await started(table, call)
    table.cancel("somebody else", "r", now=0.0)
    assert call.cancelled_at is None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(table) == 0


async def test_a_cancel_affects_only_tool_calls_and_can_be_taken_back() -> None:
    table, call, tools = CallTable(), pending(), pending(tracked=False)
    tasks = [await started(table, call), await started(table, tools)]
    cancelled = table.cancel("s", "r", now=10.0)
    assert call.cancelled_at == 10.0
    assert tools.cancelled_at is None
    for each in cancelled:
        each.cancelled_at = None
    table.settle_overdue(11.0)
    assert call.verdict is None
    table.abandon("s")
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*tasks, return_exceptions=True))


async def test_a_task_is_retried_until_it_succeeds() -> None:
    background_tasks = BackgroundTasks(asyncio.create_task)
    tried = 0

    async def errand() -> None:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise Unavailable("not now")

    background_tasks.until_done("an errand", errand)
    await background_tasks.settle(within=10)
    assert tried == 3


@pytest.mark.parametrize("refusal", [NotAllowed("no"), Malformed("no")])
async def test_a_refused_task_is_not_retried(refusal: SmcpError) -> None:
    background_tasks = BackgroundTasks(asyncio.create_task)
    tried = 0

    async def errand() -> None:
        nonlocal tried
        tried += 1
        raise refusal

    background_tasks.until_done("an errand", errand)
    await background_tasks.settle(within=10)
    assert tried == 1
