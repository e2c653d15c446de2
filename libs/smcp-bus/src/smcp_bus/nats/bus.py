"""The bus over one connection to nats-server."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

from smcp_bus import bus
from smcp_bus.bus import NO_HEADERS, BusError, Headers, NoResponder, Progress, Reply, RequestHandler, Subscription
from smcp_bus.nats.client import FLUSH_S, NatsClient
from smcp_bus.nats.config import BusConfig as BusConfig
from smcp_bus.nats.receiving import ROOT, Awaited, Inbox, Serving
from smcp_bus.nats.transfers import Outgoing, Transfers, is_chunk
from smcp_bus.nats.wire import NOTE_HEAD, SIZE, decode_head, encode_head, is_no_responders

_log = logging.getLogger(__name__)

OPEN_CREDENTIAL: Final = "open"
"""The credential's name where nats-server asks for none."""
_DENIAL: Final = re.compile(r'for (?P<to>publish|subscription) to "(?P<subject>[^"]*)"')


class PendingReply(Awaited[tuple[str, bytes, bytes]]):
    """A request that waits for its answer (reply subject, header block, body), and meanwhile gives the rest of its own
    body."""

    __slots__ = ("outgoing", "progress", "subject")

    def __init__(self, subject: str, outgoing: Outgoing | None, deadline: float, progress: Progress | None) -> None:
        super().__init__(deadline)
        self.subject = subject
        self.outgoing = outgoing
        self.progress = progress

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        if head and is_chunk(head):
            if self.outgoing is not None:
                self.outgoing.answer(reply, head)
        elif head == NOTE_HEAD:
            if self.progress is not None:
                self.progress.noted(body)
        elif not self.future.done():
            self.future.set_result((reply, head, body))


class Bus(NatsClient):
    """The bus over nats-server, as `smcp_bus.bus` promises it. Made by `open_bus`.

    Attributes:
        process: the id of this process, new at each start.
        credential: the name of this process's credential; `open` where it has none.
        inbox_prefix: under which the answers to this process arrive; each credential has its own.
        max_body: bytes a body may have (`SMCP_MAX_PAYLOAD`).
    """

    def __init__(self, config: BusConfig) -> None:
        self.process = config.process or uuid4().hex
        self.credential = config.credentials.name if config.credentials else OPEN_CREDENTIAL
        self.inbox_prefix = config.credentials.inbox_prefix if config.credentials else ROOT
        self.max_body = config.max_payload
        self._inbox = Inbox(self.inbox_prefix, self.process)
        super().__init__(config, lost=self._inbox.lose_all, denied=self._denied)
        self.attach(self._inbox.subject, "", self._inbox.receive)
        self.transfers = Transfers(
            self,
            self._inbox,
            max_body=config.max_payload,
            budget=config.budget_bytes or 4 * config.max_payload,
            # Larger: an answer exists already when it is counted, and refusing it would lose what a tool has done.
            kept=config.budget_bytes or 16 * config.max_payload,
        )
        self._received: dict[int, Serving] = {}
        self._not_permitted: set[str] = set()
        """Subjects (in lower case) that nats-server has refused to subscribe to."""

    def stats(self) -> dict[str, int]:
        """Sizes of the internal tables, for metrics and leak checks."""
        requests = [entry.outgoing for entry in self._inbox.entries.values() if isinstance(entry, PendingReply)]
        return {
            "pending": len(self._inbox.entries),
            "running": sum(received.running for received in self._received.values()),
            "waiting": sum(received.waiting for received in self._received.values()),
            "outgoing_bytes": self.transfers.kept.used + sum(outgoing.plan.total for outgoing in requests if outgoing),
            "budget_used": self.transfers.budget.used,
            "budget_waiting": self.transfers.budget.waiting,
            "subscriptions": len(self._received),
        }

    async def request(
        self,
        subject: str,
        body: bytes,
        *,
        timeout: float,
        headers: Headers = NO_HEADERS,
        progress: Progress | None = None,
    ) -> Reply:
        """Send a request to the server of `subject`. `timeout` (seconds) is sent along as the time budget.

        Raises:
            NoResponder, NotConnected: it was not run.
            ConnectionLost, RequestTimedOut, TransferFailed: it may have run.
            BodyTooLarge: nothing was sent.
        """
        deadline = self._loop.time() + timeout
        outgoing: Outgoing | None = None
        part: bytes | memoryview = body
        if len(body) > self.chunk:
            if len(body) > self.max_body:
                raise bus.BodyTooLarge(len(body), self.max_body)
            outgoing = self.transfers.outgoing(body)
            outgoing.progress = progress
            headers = {**outgoing.headers, **headers}
            part = outgoing.first
        if self.congested:
            await self.wait_writable(deadline)
        head = encode_head(headers, max(0, int(timeout * 1000)))
        self.check(subject, len(part), len(head))
        pending = PendingReply(subject, outgoing, deadline, progress)
        token, reply_subject = self._inbox.enter(pending)
        try:
            self.send(subject, reply_subject, head, part)
            if outgoing is not None and progress is not None:
                progress.request_moved()
            result = await pending.future
        finally:
            self._inbox.leave(token)
        if isinstance(result, BusError):
            raise result
        address, answer_head, answer = result
        if not answer_head:
            return Reply(answer)
        if is_no_responders(answer_head, answer):
            raise NoResponder("nobody serves this subject now")
        answer_headers = decode_head(answer_head)
        if SIZE in answer_headers:
            if progress is not None:
                progress.watched()
            return await self.transfers.read_reply(subject, address, answer_headers, answer, deadline)
        return Reply(answer, answer_headers)

    async def publish(self, subject: str, body: bytes, *, headers: Headers = NO_HEADERS) -> None:
        """Publish to all listeners on `subject`; one message, so at most the server's max_payload.

        Raises NotConnected, BodyTooLarge: nothing was sent.
        """
        if self.congested:
            await self.wait_writable(self._loop.time() + FLUSH_S)
        head = encode_head(headers)
        self.check(subject, len(body), len(head))
        self.send(subject, "", head, body)

    async def serve(self, subject: str, handler: RequestHandler, *, queue: str = "", limit: int = 1024) -> Subscription:
        """Answer the requests that arrive on `subject`, as a member of the queue group `queue`.

        Returns once the server knows the subscription (flushed): a request sent after that finds it.

        Raises BusError: no connection, or nats-server's permissions refuse it.
        """
        return await self._subscribe(Serving(self, subject, handler, limit=limit, answers=True), queue)

    async def listen(self, subject: str, handler: bus.NoticeHandler) -> Subscription:
        """As `serve`, for notifications."""
        return await self._subscribe(Serving(self, subject, handler, limit=1, answers=False), "")

    async def _subscribe(self, received: Serving, queue: str) -> Serving:
        subject = received.subject
        self.check(subject, 0, 0)
        self._not_permitted.discard(subject.lower())
        sid = received.sid = self.attach(subject, queue, received.receive)
        self._received[sid] = received
        try:
            await self.flush()
            if subject.lower() in self._not_permitted:
                raise BusError(f"not permitted to subscribe to {subject}")  # noqa: TRY301 -- ends as without an answer
        except BaseException:
            self.unsubscribe_at_server(sid)
            self._forget(sid)
            await received.abandon()
            raise
        return received

    def _forget(self, sid: int) -> None:
        self.detach(sid)
        self._received.pop(sid, None)

    async def release(self, sid: int) -> None:
        """For `Serving`: leave a subscription, once nats-server sends no more."""
        self.unsubscribe_at_server(sid)
        try:
            await self.flush()
        except BusError as error:
            # Nothing arrives without a connection, and it will not be subscribed again.
            _log.debug("left a subscription without confirmation: %s", error)
        finally:
            self._forget(sid)

    def _denied(self, text: str) -> None:
        _log.warning("nats-server refused: %s", text)
        if (denial := _DENIAL.search(text)) is None:
            return
        if denial["to"] == "subscription":
            self._not_permitted.add(denial["subject"])
            return
        for entry in list(self._inbox.entries.values()):
            if isinstance(entry, PendingReply) and entry.subject.lower() == denial["subject"]:
                entry.fail(NoResponder("not permitted to ask on this subject"))

    async def close(self) -> None:
        """For `open_bus`: first what runs, then the connection."""
        left = list(self._received.values())
        drains = [self._loop.create_task(received.drain()) for received in left]
        try:
            if drains:
                await asyncio.wait(drains, timeout=self.config.drain_timeout)
        finally:
            for drain in drains:
                drain.cancel()
            for received in left:
                await received.abandon()
            self._inbox.lose_all()
            await self.disconnect()


@asynccontextmanager
async def open_bus(config: BusConfig, *, opening: Callable[[Bus], None] | None = None) -> AsyncIterator[Bus]:
    """Connect; on leaving wait for handlers that run, then close.

    A nats-server that refuses the credential is asked again, with what the credential's file holds by then, until it
    takes it.

    Args:
        opening: given the bus before it connects, to ask for its `problem`.

    Raises:
        NotConnected: no nats-server answered within `connect_timeout`; says at which address and why.
    """
    opened = Bus(config)
    if opening is not None:
        opening(opened)
    await opened.connect(opened.inbox_prefix)
    try:
        yield opened
    finally:
        await opened.close()
