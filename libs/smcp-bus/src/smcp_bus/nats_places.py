"""What waits in the inbox: a request for its answer, the rest of a reply for whoever pulls it."""

import asyncio
from collections.abc import Callable

from smcp_bus.chunks import Outgoing, is_chunk
from smcp_bus.errors import BusError, ConnectionLost, RequestTimedOut

Answer = tuple[str, bytes, bytes]
"""Reply subject, header block, body."""


class Waiter:
    """A request that waits for its answer, and meanwhile gives the rest of its own body.

    `future` ends with the answer or the `BusError` that stands for it: as a result, never raised, so that nothing
    is left to be reported where the one who waits was cancelled.
    """

    __slots__ = ("future", "outgoing", "subject")

    def __init__(self, future: "asyncio.Future[Answer | BusError]", subject: str, outgoing: Outgoing | None) -> None:
        self.future = future
        self.subject = subject
        self.outgoing = outgoing

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        if head and is_chunk(head):
            if self.outgoing is not None:
                self.outgoing.answer(reply, head)
        elif not self.future.done():
            self.future.set_result((reply, head, body))

    def lost(self) -> None:
        self.fail(ConnectionLost("the connection to nats-server broke"))

    def expire(self) -> None:
        self.fail(RequestTimedOut("no answer in time"))

    def fail(self, error: BusError) -> None:
        if not self.future.done():
            self.future.set_result(error)


class Kept:
    """The rest of a reply, until it was pulled or its time is over."""

    __slots__ = ("leave", "outgoing")

    def __init__(self, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self.leave: Callable[[], None] = _nothing

    def receive(self, reply: str, head: bytes, _body: bytes) -> None:
        if is_chunk(head):
            self.outgoing.answer(reply, head)
            if self.outgoing.done:
                self.leave()

    def lost(self) -> None:
        """Stays: who asked may be connected still, and go on when we are back."""


def _nothing() -> None:
    pass
