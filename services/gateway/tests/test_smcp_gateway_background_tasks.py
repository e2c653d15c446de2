"""BackgroundTasks: what nobody waits for, tried until it works."""

import asyncio

import pytest

from smcp_gateway.background_tasks import BackgroundTasks
from smcp_proto.errors import Malformed, NotAllowed, SmcpError, Unavailable
from smcp_testing.waiting import eventually


async def test_a_task_is_retried_until_it_succeeds() -> None:
    background_tasks = BackgroundTasks(asyncio.create_task)
    tried = 0

    async def errand() -> None:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise Unavailable("not now")

    background_tasks.until_done("an errand", errand)
    await eventually(lambda: len(background_tasks) == 0)
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
    await eventually(lambda: len(background_tasks) == 0)
    assert tried == 1
