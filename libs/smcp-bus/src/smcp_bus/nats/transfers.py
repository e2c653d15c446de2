"""Bodies that do not fit one message, both ways.

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
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from smcp_bus import bus
from smcp_bus.bus import BodyTooLarge, BusError, Headers, Incoming, Reply, TransferFailed, error_reply
from smcp_bus.headers import NOT_RUN
from smcp_bus.limits import SLOWEST, ByteBudget, Grant
from smcp_bus.nats.client import MAX_CHUNK, NatsClient
from smcp_bus.nats.receiving import Awaited, Entry, Inbox
from smcp_bus.nats.wire import CHUNK, CHUNKS, SIZE, encode_head, is_no_responders, without_plan
from smcp_proto.errors import ANSWER_TOO_LARGE, REQUEST_TOO_LARGE, TooLarge, Unavailable

_log = logging.getLogger(__name__)

MAX_CHUNKS: Final = 8192
"""More than any body within the limits needs: a peer cannot make us ask for bytes one by one."""

DONE: Final = b"done"
PROBE: Final = b"here"
"""A pull without an answer, except that nats-server answers for a peer that is gone."""

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
        self.progress: bus.Progress | None = None

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
        # Not counted: the time in which the chunks of others come first, or in which this process was suspended.
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


_FLIGHT: Final = 32 * MAX_CHUNK
"""Bytes that all bodies together have asked for and not got; nats-server cuts a client off at 64 MiB."""
_PATIENCE_S: Final = 60.0
"""For a peer that did not say how long it waits."""
IDLE_S: Final = 10.0
"""How long an answer is kept of which nothing is asked for (seconds). A peer that waits says `here` every 2 s."""


def office_of(subject: str) -> str:
    """The office's token in a subject (`smcp_bus.subjects`, which is above this layer); empty where there is none."""
    parts = subject.split(".", 3)
    return parts[2] if len(parts) == 4 and parts[:2] == ["smcp", "v1"] else ""


class Transfers:
    """The chunked bodies of one process."""

    def __init__(self, client: NatsClient, inbox: Inbox, *, max_body: int, budget: int, kept: int) -> None:
        self._client = client
        self.inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._send: Send = client.send
        self._flights = ByteBudget(_FLIGHT)
        self.max_body = max_body
        self.budget = ByteBudget(budget)
        """Bytes of incoming bodies."""
        self.kept = ByteBudget(kept)
        """Bytes of answers being pulled; a single one may be larger."""
        self.counts = {"in": 0, "out": 0, "in_failed": 0}
        self.bytes = {"in": 0, "out": 0}

    def outgoing(self, body: bytes) -> Outgoing:
        self.counts["out"] += 1
        self.bytes["out"] += len(body)
        return Outgoing(self._send, body, self._client.chunk)

    async def pull(self, office: str, address: str, headers: Headers, first: bytes, deadline: float) -> bytes:
        """The whole body of which `first` came, from the office's share of the budgets.

        Raises:
            BodyTooLarge: it says it is above the limit; nothing was asked for.
            TransferFailed, ConnectionLost, RequestTimedOut: the rest did not come.
        """
        plan = announced_plan(headers, len(first), self.max_body)
        if not address:
            raise TransferFailed("a chunked body without a way to its rest")
        pulling = Pulling(self._send, self._flights, address, plan, first, office, deadline)
        token, pulling.subject = self.inbox.enter(pulling)
        grant = self.budget.ask(plan.total, pulling.start, office)
        try:
            pulling.wait()
            result = await pulling.future
        finally:
            pulling.stop()
            grant.release()
            self.inbox.leave(token)
        if isinstance(result, BusError):
            self.counts["in_failed"] += 1
            raise result
        self.counts["in"] += 1
        self.bytes["in"] += len(result)
        return result

    async def read_reply(self, subject: str, address: str, headers: Headers, first: bytes, deadline: float) -> Reply:
        """The whole of a reply, to a request on `subject`, whose headers announce chunks; above the limit a 413 in its
        place. Raises what `Bus.request` may."""
        try:
            body = await self.pull(office_of(subject), address, headers, first, deadline)
        except BaseException as error:
            if address:
                self._client.send(address, "", chunk_head(DONE), b"")
            if isinstance(error, BodyTooLarge):
                return _too_large(ANSWER_TOO_LARGE, error)
            raise
        return Reply(body, without_plan(headers))

    async def read_request(self, address: str, request: Incoming) -> bytes | Reply | None:
        """The whole body of a request; the Reply that refuses it; None where nobody waits any more."""
        office, until = office_of(request.subject), self.until(request.deadline)
        try:
            return await self.pull(office, address, request.headers, request.body, until)
        except BodyTooLarge as error:
            return _too_large(REQUEST_TOO_LARGE, error)
        except (bus.RequestTimedOut, bus.ConnectionLost):
            return None
        except TransferFailed as error:
            _log.debug("a request was dropped: %s", error)
            return error_reply(Unavailable("the request did not arrive whole"), {NOT_RUN: "1"})

    def keep(self, subject: str, reply: Reply, request: Incoming) -> Reply | None:
        """Send the first chunk of a large answer to `request`, and keep it for the others; the Reply that takes its
        place where too many are kept, of all offices or of this one. Raises as `NatsClient.check`."""
        outgoing = self.outgoing(reply.body)
        head = encode_head({**outgoing.headers, **reply.headers})
        self._client.check(subject, len(outgoing.first), len(head))
        grant = self.kept.take(outgoing.plan.total, office_of(request.subject))
        if grant is None:
            _log.warning("a large answer was not sent: %d bytes of other answers wait to be fetched", self.kept.used)
            full = "too many large answers are on their way; retry"
            return error_reply(Unavailable(full, details={"may_have_run": True}))
        kept = _Kept(self.inbox, outgoing, self.until(request.deadline), grant)
        kept.token, address = self.inbox.enter(kept)
        self._client.send(subject, address, head, outgoing.first)
        return None

    def until(self, deadline: float | None) -> float:
        return self._loop.time() + _PATIENCE_S if deadline is None else deadline


def _too_large(message: str, error: BodyTooLarge) -> Reply:
    return error_reply(TooLarge(message, details={"limit": error.limit, "size": error.size}))


class _Kept(Entry):
    """The rest of one answer; an entry of the inbox until it was pulled, at most until `until` (loop time).

    It stays where our connection breaks: the asker may be connected still, and go on when we are back.
    """

    token: bytes

    def __init__(self, inbox: Inbox, outgoing: Outgoing, until: float, grant: Grant) -> None:
        self._inbox = inbox
        self._grant = grant
        self._loop = asyncio.get_running_loop()
        self._until = until
        self._outgoing = outgoing
        self.deadline = min(until, self._loop.time() + IDLE_S)

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        if is_chunk(head):
            self.deadline = min(self._until, self._loop.time() + IDLE_S)
            self._outgoing.answer(reply, head)
        if self._outgoing.done or is_no_responders(head, body):  # the first chunk reached nobody: none is asked for
            self._drop()

    def fail(self, error: BusError) -> None:
        self._drop()

    def _drop(self) -> None:
        self._inbox.leave(self.token)
        self._grant.release()
