"""The errors between two processes, named by what the caller may conclude from them; and lost cancellations."""

import asyncio


class BusError(Exception):
    """Base of all errors of the bus."""


class NoResponder(BusError):
    """Nobody served the subject. The request was not run."""


class NotConnected(BusError):
    """The bus is not connected now. The request was not sent, so it was not run."""


class ConnectionLost(BusError):
    """The connection broke while an answer was awaited. The request may have run."""


class RequestTimedOut(BusError):
    """No answer within the time-out. The request may have run."""


class BodyTooLarge(BusError):
    """A body above the limit of the bus. Nothing was sent.

    Attributes:
        size: bytes of the body.
        limit: bytes that the bus takes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are more than the bus takes ({limit})")
        self.size = size
        self.limit = limit


class TransferFailed(BusError):
    """The rest of a chunked body did not arrive. The request may have run."""


def describe(error: BaseException) -> str:
    """What an error says, for a log line or a message; its name where it says nothing (a time-out)."""
    return str(error) or type(error).__name__


def raise_if_cancelled() -> None:
    """Raise CancelledError where this task was cancelled and does not know.

    Until Python 3.12 `asyncio.wait_for`, which nats-py waits with, drops a cancellation that comes in the same round of
    the loop as the result. An endless task asks here after each such wait, or it could not be ended, and so does what
    starts a service, or the start would go on after a stop.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
