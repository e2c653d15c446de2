"""The side that wants a chunked body: asks for its chunks, a few at a time, again where one was lost."""

import asyncio
from typing import Final

from smcp_bus.chunks import DONE, GONE, Plan, chunk_head, chunk_index, is_chunk
from smcp_bus.errors import BusError, ConnectionLost, RequestTimedOut, TransferFailed
from smcp_bus.nats_client import NatsClient
from smcp_bus.nats_headers import is_no_responders

WINDOW: Final = 4
"""Chunks asked for and not there yet."""
_TICK_S: Final = 0.1
_RETRY_S: Final = 1.0
"""How long a chunk may take before it is asked for again; doubles with each time, up to eight-fold."""
_ABSENT_S: Final = 0.7
"""How long nobody may be behind the address: less than the second in which a death has to be noticed."""


class Pulling:
    """One body on its way in; a place in the inbox.

    `future` ends with the whole body, or with the `BusError` that says why not. Nothing is asked for before `start`.
    """

    def __init__(self, client: NatsClient, address: str, plan: Plan, first: bytes) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._plan = plan
        self._chunks: dict[int, bytes] = {0: first}
        self._next = 1
        self._asked: dict[int, tuple[float, int]] = {}
        self._absent_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[bytes | BusError] = self._loop.create_future()
        self.subject = ""
        """Where the chunks shall arrive."""

    def start(self) -> None:
        if self.future.done():
            return
        while len(self._asked) < WINDOW and self._next < self._plan.count:
            self._ask(self._next, 0)
            self._next += 1
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def receive(self, _reply: str, head: bytes, body: bytes) -> None:
        if self.future.done():
            return
        if is_no_responders(head, body):
            self._absent()
            return
        if not is_chunk(head):
            return
        text = chunk_index(head)
        if text == GONE:
            self.fail(TransferFailed("the peer does not have the rest of the body any more"))
            return
        index = int(text) if text.isdigit() and len(text) < 6 else -1
        if index in self._chunks:
            return  # it was sent twice
        if index not in self._asked or len(body) != self._plan.length(index):
            self.fail(TransferFailed("a chunk that was not asked for, or of a wrong size"))
            return
        self._absent_since = None
        del self._asked[index]
        self._chunks[index] = body
        if self._next < self._plan.count:
            self._ask(self._next, 0)
            self._next += 1
        elif not self._asked:
            self._send(DONE)
            self.future.set_result(b"".join(self._chunks[i] for i in range(self._plan.count)))

    def lost(self) -> None:
        self.fail(ConnectionLost("the connection to nats-server broke"))

    def expire(self) -> None:
        self.fail(RequestTimedOut("the rest of the body did not arrive in time"))

    def fail(self, error: BusError) -> None:
        if not self.future.done():
            self._chunks.clear()
            self.future.set_result(error)

    def _ask(self, index: int, tries: int) -> None:
        self._asked[index] = (self._loop.time(), tries)
        self._send(b"%d" % index)

    def _send(self, what: bytes) -> None:
        if self._client.up:
            self._client.send(self._address, self.subject, chunk_head(what), b"")

    def _absent(self) -> None:
        now = self._loop.time()
        if self._absent_since is None:
            self._absent_since = now
        if now - self._absent_since > _ABSENT_S:
            self.fail(TransferFailed("the peer that has the rest of the body has gone"))

    def _tick(self) -> None:
        if self.future.done():
            return
        now = self._loop.time()
        for index, (asked, tries) in list(self._asked.items()):
            patience = _TICK_S if self._absent_since is not None else _RETRY_S * 2 ** min(tries, 3)
            if now - asked >= patience:
                self._ask(index, tries + 1)
        self._timer = self._loop.call_later(_TICK_S, self._tick)
