"""Restores a cancellation that `asyncio.wait_for` dropped."""

import asyncio


def raise_if_cancelled() -> None:
    """Raise CancelledError where this task was cancelled and does not know.

    Until Python 3.12 `asyncio.wait_for`, which nats-py waits with, drops a cancellation that comes in the same round of
    the loop as the result. An endless task asks here after each such wait, or it could not be ended, and so does what
    starts a service, or the start would go on after a stop.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
