"""Bodies larger than a message, both ways; and the answers to requests, which may be such."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from smcp_bus.bus import Admit, Headers, Reply
from smcp_bus.byte_budget import ByteBudget, Grant
from smcp_bus.chunks import (
    CHUNKS,
    DONE,
    GONE,
    MAX_CHUNK,
    SIZE,
    Outgoing,
    Send,
    announced_plan,
    chunk_head,
    is_chunk,
)
from smcp_bus.errors import BodyTooLarge, BusError, ConnectionLost, NotConnected, RequestTimedOut, TransferFailed
from smcp_bus.headers import NOT_RUN
from smcp_bus.nats.chunks_pull import Pulling
from smcp_bus.nats.headers import decode_head, encode_head
from smcp_bus.nats.inbox import Inbox
from smcp_bus.nats.kept_answers import KeptAnswers
from smcp_bus.nats.link import Link
from smcp_bus.nats.places import Waiter
from smcp_bus.nats.serving import error_reply
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

    def __init__(self, link: Link, inbox: Inbox, *, max_body: int, budget: int, kept: int) -> None:
        self._link = link
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._send: Send = link.send
        self._flights = ByteBudget(_FLIGHT)
        self.max_body = max_body
        self.budget = ByteBudget(budget)
        """Of bodies on their way in. As many bytes again may be kept of answers on their way out."""
        self._kept = KeptAnswers(inbox, limit=kept)

    @property
    def chunk(self) -> int:
        """Bytes of the largest body that goes in one message."""
        limit = self._link.max_message
        return min(MAX_CHUNK, max(limit - _HEADROOM, limit // 2))

    @property
    def outgoing_bytes(self) -> int:
        """Of the bodies that are kept until they are pulled."""
        requests = (place.outgoing for place in self._inbox.places.values() if isinstance(place, Waiter))
        return self._kept.bytes + sum(outgoing.plan.total for outgoing in requests if outgoing is not None)

    def interpose(self, wrap: Callable[[Send], Send]) -> None:
        """Let every chunk, and every question for one, go through `wrap(send)`: for a bad network in tests."""
        self._send = wrap(self._send)

    def outgoing(self, body: bytes) -> Outgoing:
        """A body that goes in chunks of this connection's size."""
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
        """Wait while too much waits to be written; `deadline` is when nobody waits for the answer any more.

        Raises:
            NotConnected: nats-server did not take it until then, or the connection broke.
        """
        await self._link.room(self._until(deadline))

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
        self._link.check(subject, len(reply.body), len(head))
        self._link.client.send(subject, "", head, reply.body)

    def _keep(self, subject: str, reply: Reply, deadline: float | None) -> None:
        outgoing = self.outgoing(reply.body)
        head = encode_head({**outgoing.headers, **reply.headers})
        self._link.check(subject, len(outgoing.first), len(head))
        until = self._until(deadline)
        own_subject = self._kept.keep(outgoing, until)
        if own_subject is None:
            _log.warning("a large answer was not sent: %d bytes of others are being taken", self._kept.bytes)
            full = "too many large answers are on their way; ask again"
            self._respond(subject, error_reply(ErrorCode.UNAVAILABLE, full, may_have_run=True), deadline)
            return
        self._link.client.send(subject, own_subject, head, outgoing.first)

    def _until(self, deadline: float | None) -> float:
        return self._loop.time() + _PATIENCE_S if deadline is None else deadline

    def _release(self, address: str) -> None:
        """Say that nothing more of a reply is wanted, so that it is not kept for us."""
        if address:
            self._link.send(address, "", chunk_head(DONE), b"")

    def stray(self, reply: str, head: bytes) -> None:
        """Something came for a place that has gone: tell who pulls from it, and who keeps the rest of an answer for it.

        `reply` lies in an inbox: see `smcp_bus.nats.inbox.is_inbox`.
        """
        if is_chunk(head):
            self._link.send(reply, "", chunk_head(GONE), b"")
        elif SIZE in decode_head(head):
            self._release(reply)
