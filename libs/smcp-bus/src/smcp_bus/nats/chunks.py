"""Bodies that do not fit one message: the plan of their chunks, and the side that has them.

The first message carries chunk 0 and says in its headers how large the whole is. The receiver asks for the others,
each by its index, and ends with `done`:

    sender   → receiver   Smcp-Size: 1300000, Smcp-Chunks: 3       chunk 0; its reply subject reaches the sender
    receiver → sender     Smcp-Chunk: 1   (reply: an address in the inbox of the receiver)
    sender   → receiver   Smcp-Chunk: 1                            chunk 1
    …
    receiver → sender     Smcp-Chunk: done

For a request the sender is reached by the request's own reply subject, for a reply by the reply subject that the
reply carries. No address stands in a header, so nats-server's permissions bind all of it.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from smcp_bus.bus import BodyTooLarge, Headers, Progress, TransferFailed
from smcp_bus.limits import SLOWEST, ByteBudget, Grant
from smcp_bus.nats.receiving import Awaited
from smcp_bus.nats.wire import CHUNK, CHUNKS, SIZE, is_no_responders

MAX_CHUNKS: Final = 8192
"""More than any body within the limits needs: a peer cannot make us ask for bytes one by one."""

DONE: Final = b"done"
PROBE: Final = b"here"
"""A pull that is not answered, but by nats-server where nobody is there."""

_CHUNK_HEAD: Final = f"NATS/1.0\r\n{CHUNK}: ".encode()
_NUMBER: Final = re.compile(r"[0-9]{1,12}")

Send = Callable[[str, str, bytes, bytes | memoryview], None]
"""Sends subject, reply subject, header block and body; drops them while there is no connection."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a body is cut: chunks of `chunk` bytes, the last one shorter or as long."""

    total: int
    chunk: int

    @property
    def count(self) -> int:
        return -(-self.total // self.chunk)

    def length(self, index: int) -> int:
        return min(self.chunk, self.total - index * self.chunk)


def announced_plan(headers: Headers, first: int, limit: int) -> Plan:
    """The plan that a first message of `first` bytes announces, checked: nothing is believed that does not add up.

    Raises:
        BodyTooLarge: the whole is above `limit`.
        TransferFailed: the numbers are none, or contradict each other.
    """
    total_text, count_text = headers.get(SIZE, ""), headers.get(CHUNKS, "")
    if not (_NUMBER.fullmatch(total_text) and _NUMBER.fullmatch(count_text)):
        raise TransferFailed("a chunked body without its size")
    total, count = int(total_text), int(count_text)
    if total > limit:
        raise BodyTooLarge(total, limit)
    if not 0 < first < total or count > MAX_CHUNKS or Plan(total, first).count != count:
        raise TransferFailed("a chunked body whose sizes contradict each other")
    return Plan(total, first)


def is_chunk(head: bytes) -> bool:
    return head.startswith(_CHUNK_HEAD)


def chunk_head(index: bytes) -> bytes:
    """The header block that asks for a chunk, or brings it: `index` in digits, or one of the words above."""
    return b"%b%b\r\n\r\n" % (_CHUNK_HEAD, index)


def chunk_index(head: bytes) -> bytes:
    return head[len(_CHUNK_HEAD) :].partition(b"\r")[0]


def index_of(text: bytes) -> int:
    """-1 where it is not the index of a chunk."""
    return int(text) if len(text) < 6 and text.isdigit() else -1


class Outgoing:
    def __init__(self, send: Send, body: bytes, chunk: int) -> None:
        self._send = send
        self._body = memoryview(body)
        self.plan = Plan(len(body), chunk)
        self.first = self._body[:chunk]
        self.headers = {SIZE: str(self.plan.total), CHUNKS: str(self.plan.count)}
        self.done = False
        self.progress: Progress | None = None

    def answer(self, reply: str, head: bytes) -> None:
        request = chunk_index(head)
        if self.progress is not None and not self.done:
            if request == DONE:
                self.progress.request_delivered()
            else:
                self.progress.request_moved()
        self.done |= request == DONE
        index = index_of(request)
        if reply and 0 <= index < self.plan.count:
            start = index * self.plan.chunk
            self._send(reply, "", head, self._body[start : start + self.plan.chunk])


WINDOW: Final = 4
"""Chunks of one body that are asked for and not there yet."""
_TICK_S: Final = 0.1
"""How often a transfer looks how far it is."""
_PROBE_S: Final = 0.3
"""After so long without a chunk we look whether the peer is there at all."""
_SIGN_S: Final = 2.0
"""How often a receiver that waits for its share of the budget tells the sender so (seconds)."""
_STALL_S: Final = 15.0
"""How long no new chunk may come: a peer that is suspended must not hold its share of the budget for an hour."""
_LOST_S: Final = 5.0
"""After so long without a new chunk the missing ones are asked for once more: a node of NATS may have died with them.
A chunk of 512 KiB takes 4 s on a line of 1 MBit/s."""
LONGEST_S: Final = 300.0
"""How long a body may take, however long its request may: 32 MiB over a line of 1 MBit/s."""


class Pulling(Awaited[bytes]):
    """One body on its way in; an entry of the inbox. Nothing is asked for before `start`."""

    def __init__(
        self, send: Send, flights: ByteBudget, address: str, plan: Plan, first: bytes, office: str, deadline: float
    ) -> None:
        """`flights` bounds what all bodies of the process have asked for and not got."""
        super().__init__(deadline)
        self._send = send
        self._flights = flights
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._plan = plan
        self._office = office
        self._chunks: dict[int, bytes] = {0: first}
        self._next = 1
        self._grants: dict[int, Grant] = {}
        self._began = 0.0
        self._came = 0
        self._progress = 0.0
        self._ticked = 0.0
        self._probed = 0.0
        self._asked_again = False
        self._timer: asyncio.TimerHandle | None = None
        self.subject = ""

    def wait(self) -> None:
        """Until `start`: say now and then that we are here, so that the body is kept for us."""
        if not (self._began or self.future.done()):
            self._send(self._address, self.subject, chunk_head(PROBE), b"")
            self._timer = self._loop.call_later(_SIGN_S, self.wait)

    def start(self) -> None:
        if self.future.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._began = self._progress = self._ticked = self._loop.time()
        while self._next < min(self._plan.count, 1 + WINDOW):
            self._want_next()
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._grants:
            self._grants.popitem()[1].release()

    def receive(self, _reply: str, head: bytes, body: bytes) -> None:
        if self.future.done():
            return
        if is_no_responders(head, body):
            self.fail(TransferFailed("the peer that has the rest of the body has gone"))
        elif is_chunk(head):
            self._receive_chunk(index_of(chunk_index(head)), body)

    def _receive_chunk(self, index: int, body: bytes) -> None:
        if index in self._chunks:
            return
        if index not in self._grants or len(body) != self._plan.length(index):
            self.fail(TransferFailed("a chunk that was not asked for, or of a wrong size"))
            return
        self._progress = self._loop.time()
        self._asked_again = False
        self._came += len(body)
        self._chunks[index] = body
        self._grants.pop(index).release()
        if len(self._chunks) == self._plan.count:
            self._send(self._address, "", chunk_head(DONE), b"")
            self.future.set_result(b"".join(self._chunks[i] for i in range(self._plan.count)))
        elif self._next < self._plan.count:
            self._want_next()

    def _want_next(self) -> None:
        index, self._next = self._next, self._next + 1
        self._grants[index] = self._flights.ask(self._plan.length(index), partial(self._ask, index), self._office)

    def _ask(self, index: int) -> None:
        self._send(self._address, self.subject, chunk_head(b"%d" % index), b"")

    def _tick(self) -> None:
        now, asked = self._loop.time(), sorted(index for index, grant in self._grants.items() if grant.given)
        since, self._ticked = now - self._ticked, now
        # Not counted: the time in which the chunks of others come first, or this process is the one that stood still.
        waited = since if not asked else since - _TICK_S if since > 2 * _TICK_S else 0.0
        self._began += waited
        self._progress = min(self._progress + waited, now)
        if now - self._progress > _STALL_S:
            self.fail(TransferFailed("the peer that has the rest of the body hangs"))
        elif self._came < SLOWEST * (now - self._began - _STALL_S) or now - self._began > LONGEST_S:
            self.fail(TransferFailed("the sender of the body is too slow"))
        if self.future.done():
            return
        if asked and now - max(self._progress, self._probed) > _PROBE_S:
            self._probed = now
            self._send(self._address, self.subject, chunk_head(PROBE), b"")
        if now - self._progress > _LOST_S and not self._asked_again:
            self._asked_again = True
            for index in asked:
                self._ask(index)
        self._timer = self._loop.call_later(_TICK_S, self._tick)
