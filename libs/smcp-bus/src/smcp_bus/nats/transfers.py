"""Bodies larger than a message, both ways; and the answers to requests, which may be such."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from smcp_bus.bus import Admit, Headers, Reply
from smcp_bus.byte_budget import ByteBudget, Grant
from smcp_bus.errors import BodyTooLarge, BusError, ConnectionLost, NotConnected, RequestTimedOut, TransferFailed
from smcp_bus.headers import NOT_RUN
from smcp_bus.nats.chunks import (
    CHUNKS,
    DONE,
    GONE,
    MAX_CHUNK,
    SIZE,
    Outgoing,
    Pulling,
    Send,
    announced_plan,
    chunk_head,
    is_chunk,
)
from smcp_bus.nats.client import NatsClient
from smcp_bus.nats.inbox import Inbox, PendingReply
from smcp_bus.nats.serving import error_reply
from smcp_bus.nats.wire import decode_head, encode_head, is_no_responders
from smcp_proto.errors import ErrorCode

_log = logging.getLogger(__name__)

_HEADROOM: Final = 16 * 1024
"""Of a message's size, kept free for its headers."""
_FLIGHT: Final = 32 * MAX_CHUNK
"""Bytes that all bodies together have asked for and not got: a fraction of what nats-server holds for a client
before it cuts it off (64 MiB)."""
_PATIENCE_S: Final = 60.0
"""For a peer that did not say how long it waits."""


class Transfers:
    """The chunked bodies of one process."""

    def __init__(self, client: NatsClient, inbox: Inbox, *, max_body: int, budget: int, kept: int) -> None:
        self._client = client
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._send: Send = client.send
        self._flights = ByteBudget(_FLIGHT)
        self.max_body = max_body
        self.budget = ByteBudget(budget)
        """Of bodies on their way in. As many bytes again may be kept of answers on their way out."""
        self._kept = KeptAnswers(inbox, limit=kept)

    @property
    def chunk(self) -> int:
        limit = self._client.max_payload
        return min(MAX_CHUNK, max(limit - _HEADROOM, limit // 2))

    @property
    def outgoing_bytes(self) -> int:
        requests = (entry.outgoing for entry in self._inbox.entries.values() if isinstance(entry, PendingReply))
        return self._kept.bytes + sum(outgoing.plan.total for outgoing in requests if outgoing is not None)

    def interpose(self, wrap: Callable[[Send], Send]) -> None:
        """Let every chunk, and every question for one, go through `wrap(send)`: for a bad network in tests."""
        self._send = wrap(self._send)

    def outgoing(self, body: bytes) -> Outgoing:
        return Outgoing(self._send, body, self.chunk)

    async def pull(
        self, address: str, headers: Headers, first: bytes, deadline: float, admit: Admit | None = None
    ) -> bytes:
        """The whole body of which `first` came; the rest is not asked for before `admit` lets it come.

        Raises:
            BodyTooLarge: it says it is above the limit; nothing was asked for.
            TransferFailed, ConnectionLost, RequestTimedOut: the rest did not come.
        """
        plan = announced_plan(headers, len(first), self.max_body)
        if not address:
            raise TransferFailed("a chunked body without a way to its rest")
        pulling = Pulling(self._send, self._flights, address, plan, first)
        token, pulling.subject = self._inbox.enter(pulling)
        timer = self._loop.call_at(deadline, pulling.expire)
        grants: list[Grant] = []

        def admitted() -> None:
            if not pulling.future.done():
                grants.append(self.budget.ask(plan.total, pulling.start))

        try:
            if admit is None:
                admitted()
            else:
                admit(plan.total, admitted)
            if not pulling.started:
                pulling.wait()
            result = await pulling.future
        finally:
            pulling.stop()
            while grants:
                grants.pop().release()
            timer.cancel()
            self._inbox.leave(token)
        if isinstance(result, BusError):
            raise result
        return result

    async def read_reply(
        self, address: str, headers: Headers, first: bytes, deadline: float, admit: Admit | None = None
    ) -> Reply:
        """The whole of a reply whose headers announce chunks; above the limit a 413 in its place, as `respond` does at
        the other end, whose limit may be another. Raises what `Bus.request` may."""
        try:
            body = await self.pull(address, headers, first, deadline, admit)
        except BodyTooLarge as error:
            self._release(address)
            return error_reply(ErrorCode.TOO_LARGE, "the answer is too large", limit=error.limit, size=error.size)
        except BaseException:
            self._release(address)
            raise
        return Reply(body, {name: value for name, value in headers.items() if name not in (SIZE, CHUNKS)})

    async def read_request(
        self, address: str, headers: Headers, first: bytes, deadline: float | None
    ) -> bytes | Reply | None:
        """The whole body of a request; the Reply that refuses it; None where nobody waits any more."""
        until = self._until(deadline)
        try:
            return await self.pull(address, headers, first, until)
        except BodyTooLarge as error:
            return error_reply(ErrorCode.TOO_LARGE, "the request is too large", limit=error.limit, size=error.size)
        except (RequestTimedOut, ConnectionLost):
            return None
        except TransferFailed as error:
            _log.warning("a request was dropped: %s", error)
            return error_reply(ErrorCode.UNAVAILABLE, "the request did not arrive whole", {NOT_RUN: "1"})

    async def room(self, deadline: float | None) -> None:
        await self._client.room(self._until(deadline))

    def respond(self, subject: str, reply: Reply, deadline: float | None) -> None:
        """Send an answer, in chunks if it has to be; above the limit a 413 in its place."""
        size = len(reply.body)
        if size > self.max_body:
            reply = error_reply(ErrorCode.TOO_LARGE, "the answer is too large", limit=self.max_body, size=size)
        try:
            self._respond(subject, reply, deadline)
        except NotConnected:
            _log.info("an answer was dropped: not connected to nats-server")
        except (ValueError, BodyTooLarge):
            _log.exception("an answer could not be sent")
            self._respond(subject, error_reply(ErrorCode.INTERNAL, "internal error"), deadline)

    def _respond(self, subject: str, reply: Reply, deadline: float | None) -> None:
        if len(reply.body) > self.chunk:
            self._keep(subject, reply, deadline)
            return
        head = encode_head(reply.headers)
        self._client.check(subject, len(reply.body), len(head))
        self._client.send(subject, "", head, reply.body)

    def _keep(self, subject: str, reply: Reply, deadline: float | None) -> None:
        outgoing = self.outgoing(reply.body)
        head = encode_head({**outgoing.headers, **reply.headers})
        self._client.check(subject, len(outgoing.first), len(head))
        until = self._until(deadline)
        own_subject = self._kept.keep(outgoing, until)
        if own_subject is None:
            _log.warning("a large answer was not sent: %d bytes of others are being taken", self._kept.bytes)
            full = "too many large answers are on their way; ask again"
            self._respond(subject, error_reply(ErrorCode.UNAVAILABLE, full, may_have_run=True), deadline)
            return
        self._client.send(subject, own_subject, head, outgoing.first)

    def _until(self, deadline: float | None) -> float:
        return self._loop.time() + _PATIENCE_S if deadline is None else deadline

    def _release(self, address: str) -> None:
        if address:
            self._client.send(address, "", chunk_head(DONE), b"")

    def stray(self, reply: str, head: bytes) -> None:
        """A message for an entry that has gone: tell who pulls from it, and who keeps the rest of an answer for it.

        `reply` lies in an inbox: see `smcp_bus.nats.inbox.is_inbox`.
        """
        if is_chunk(head):
            self._client.send(reply, "", chunk_head(GONE), b"")
        elif SIZE in decode_head(head):
            self._release(reply)


IDLE_S: Final = 30.0
"""How long an answer is kept of which nobody asks for anything (seconds): who would ask has most likely gone. A living
one asks, or says `here` while nothing comes or it waits for its share of its budget."""
STALE_S: Final = 6.0
"""The same where others need the room: several times the pause between two signs of life (seconds)."""


class Kept:
    """The rest of one answer; an entry of the inbox."""

    def __init__(self, answers: "KeptAnswers", outgoing: Outgoing, until: float, now: float) -> None:
        self._answers = answers
        self.outgoing = outgoing
        self.until = until
        self.asked = now
        """When something of it was asked for last (loop time, seconds)."""
        self.token = b""
        self.timer: asyncio.TimerHandle | None = None

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        if is_chunk(head):
            self.outgoing.answer(reply, head)
            if self.outgoing.done:
                self._answers.drop(self)
            else:
                self._answers.touch(self)
        elif is_no_responders(head, body):
            # The first chunk reached nobody, so nobody can ask for the others.
            self._answers.drop(self)

    def lost(self) -> None:
        """Stays: who asked may be connected still, and go on when we are back."""


class KeptAnswers:
    """All of a process; together at most `limit` bytes, but for a single one that is larger."""

    def __init__(self, inbox: Inbox, *, limit: int) -> None:
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._kept: dict[bytes, Kept] = {}  # the one that was asked for longest ago is the first
        self.limit = limit
        self.bytes = 0

    def keep(self, outgoing: Outgoing, until: float) -> str | None:
        """Keep it until it was pulled, at most until `until` (loop time); the subject on which it is asked for.

        None where there is no room: the answers that are kept are all being pulled.
        """
        now = self._loop.time()
        size = outgoing.plan.total
        while self._kept and self.bytes + size > self.limit:
            oldest = next(iter(self._kept.values()))
            if now - oldest.asked < STALE_S:
                return None
            self.drop(oldest)
        kept = Kept(self, outgoing, until, now)
        kept.token, subject = self._inbox.enter(kept)
        self._kept[kept.token] = kept
        self.bytes += size
        self._expire(kept)
        return subject

    def touch(self, kept: Kept) -> None:
        if kept.token in self._kept:
            kept.asked = self._loop.time()
            self._kept[kept.token] = self._kept.pop(kept.token)

    def drop(self, kept: Kept) -> None:
        if self._kept.pop(kept.token, None) is None:
            return
        self.bytes -= kept.outgoing.plan.total
        self._inbox.leave(kept.token)
        if kept.timer is not None:
            kept.timer.cancel()

    def _expire(self, kept: Kept) -> None:
        ends = min(kept.until, kept.asked + IDLE_S)
        if ends <= self._loop.time():
            self.drop(kept)
        else:
            kept.timer = self._loop.call_at(ends, self._expire, kept)
