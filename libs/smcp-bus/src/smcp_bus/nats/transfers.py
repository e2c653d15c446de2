"""Bodies larger than a message, both ways."""

import asyncio
import logging
from typing import Final

from smcp_bus.bus import (
    BodyTooLarge,
    BusError,
    ConnectionLost,
    Headers,
    Incoming,
    Reply,
    RequestTimedOut,
    TransferFailed,
    error_reply,
)
from smcp_bus.headers import NOT_RUN
from smcp_bus.limits import ByteBudget, Grant
from smcp_bus.nats.chunks import DONE, Outgoing, Pulling, Send, announced_plan, chunk_head, is_chunk
from smcp_bus.nats.client import MAX_CHUNK, NatsClient
from smcp_bus.nats.receiving import Entry, Inbox
from smcp_bus.nats.wire import encode_head, is_no_responders, without_plan
from smcp_proto.errors import ANSWER_TOO_LARGE, REQUEST_TOO_LARGE, TooLarge, Unavailable

_log = logging.getLogger(__name__)

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
        token, pulling.subject = self.inbox.enter(pulling, deadline)
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
        except (RequestTimedOut, ConnectionLost):
            return None
        except TransferFailed as error:
            _log.warning("a request was dropped: %s", error)
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
            full = "too many large answers are on their way; ask again"
            return error_reply(Unavailable(full, details={"may_have_run": True}))
        kept = _Kept(self.inbox, outgoing, self.until(request.deadline), grant)
        self._client.send(subject, kept.subject, head, outgoing.first)
        return None

    def until(self, deadline: float | None) -> float:
        return self._loop.time() + _PATIENCE_S if deadline is None else deadline


def _too_large(message: str, error: BodyTooLarge) -> Reply:
    return error_reply(TooLarge(message, details={"limit": error.limit, "size": error.size}))


class _Kept(Entry):
    """The rest of one answer; an entry of the inbox until it was pulled, at most until `until` (loop time).

    It stays where our connection breaks: the asker may be connected still, and go on when we are back.
    """

    def __init__(self, inbox: Inbox, outgoing: Outgoing, until: float, grant: Grant) -> None:
        self._inbox = inbox
        self._grant = grant
        self._loop = asyncio.get_running_loop()
        self._until = until
        self._asked = self._loop.time()
        self.outgoing = outgoing
        self.token, self.subject = inbox.enter(self)
        self._timer = self._loop.call_at(min(until, self._asked + IDLE_S), self._expire)

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        if is_chunk(head):
            self._asked = self._loop.time()
            self.outgoing.answer(reply, head)
        if self.outgoing.done or is_no_responders(head, body):  # the first chunk reached nobody: none is asked for
            self._drop()

    def _expire(self) -> None:
        ends = min(self._until, self._asked + IDLE_S)
        if ends <= self._loop.time():
            self._drop()
        else:
            self._timer = self._loop.call_at(ends, self._expire)

    def _drop(self) -> None:
        self._timer.cancel()
        self._inbox.leave(self.token)
        self._grant.release()
