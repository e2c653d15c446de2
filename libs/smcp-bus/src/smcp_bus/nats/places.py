"""What waits in the inbox: a request for its answer."""

import asyncio

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
        """As `Place.receive`: the answer, or a pull for the rest of the request."""
        if head and is_chunk(head):
            if self.outgoing is not None:
                self.outgoing.answer(reply, head)
        elif not self.future.done():
            self.future.set_result((reply, head, body))

    def lost(self) -> None:
        """As `Place.lost`."""
        self.fail(ConnectionLost("the connection to nats-server broke"))

    def expire(self) -> None:
        """Its time is over."""
        self.fail(RequestTimedOut("no answer in time"))

    def fail(self, error: BusError) -> None:
        """The outcome is this error, unless there is one."""
        if not self.future.done():
            self.future.set_result(error)
