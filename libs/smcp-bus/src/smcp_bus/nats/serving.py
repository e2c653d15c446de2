"""The receiving side of the bus: what arrives on a subject, handled in bounded tasks."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from smcp_bus.bus import BodyTooLarge, Headers, Incoming, NotConnected, Reply
from smcp_bus.headers import BUDGET, ERROR, PROGRESS
from smcp_bus.nats.chunks import CHUNKS, SIZE
from smcp_bus.nats.inbox import is_inbox
from smcp_bus.nats.wire import NOTE_HEAD, decode_head, encode_head
from smcp_proto.errors import ANSWER_TOO_LARGE, ErrorCode

if TYPE_CHECKING:
    from smcp_bus.nats.bus import NatsBus

_log = logging.getLogger(__name__)

_MAX_BUDGET_MS: Final = 24 * 3600 * 1000
"""A day, above the longest call: a header may hold any number."""

_Message = tuple[str, str, bytes, bytes, float]
"""Subject, reply subject, header block, body, and when it arrived (loop time)."""


def error_reply(code: ErrorCode, message: str, headers: Headers | None = None, **details: Any) -> Reply:
    body: dict[str, Any] = {"code": int(code), "message": message}
    if details:
        body["details"] = details
    return Reply(orjson.dumps(body), {ERROR: str(int(code)), **(headers or {})})


@dataclass(eq=False, repr=False)
class Serving:
    """The messages on one subject: a task for each, at most `limit` at a time; the others wait in arrival order."""

    bus: "NatsBus"
    subject: str
    handler: Callable[[Incoming], Awaitable[Reply | None]]
    _: KW_ONLY
    limit: int
    answers: bool
    """Whether they are requests. One that asks for no answer is dropped."""
    sid: int = field(default=0, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _backlog: deque[_Message] = field(default_factory=deque, init=False)
    _backlog_bytes: int = field(default=0, init=False)
    _overrun: bool = field(default=False, init=False)
    _leaving: bool = field(default=False, init=False)

    @property
    def running(self) -> int:
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        return len(self._backlog)

    async def drain(self) -> None:
        if not self._leaving:
            self._leaving = True
            await self.bus.release(self.sid)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def abandon(self) -> None:
        """Give up what waits, cancel what runs, and wait until it has ended."""
        self._backlog.clear()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def receive(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        if self.answers and not reply:
            _log.debug("dropped a message on %s that asks for no answer", self.subject)
            return
        if self.answers and not is_inbox(reply):
            _log.warning("dropped a request on %s that wants its answer outside of the inboxes", self.subject)
            return
        message = (subject.decode(), reply.decode() if self.answers else "", head, body, self._loop.time())
        config = self.bus.config
        if len(self._tasks) < self.limit:
            self._start(message)
        elif len(self._backlog) < config.backlog_messages and self._backlog_bytes + len(body) <= config.backlog_bytes:
            self._backlog.append(message)
            self._backlog_bytes += len(body)
        else:
            if not self._overrun:
                self._overrun = True
                _log.error("messages on %s are dropped: too many wait for their turn", self.subject)
            self.bus.client.dropped()

    def _start(self, message: _Message) -> None:
        subject, reply, head, body, arrived = message
        headers = decode_head(head)
        deadline = _deadline(headers, arrived) if self.answers else None
        if deadline is not None and deadline <= self._loop.time():
            return  # nobody waits for it any more
        note = partial(self._note, reply, self.bus.client.connections) if reply and PROGRESS in headers else None
        task = self._loop.create_task(self._run(Incoming(subject, body, headers, deadline, note), reply))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        while self._backlog and len(self._tasks) < self.limit:
            message = self._backlog.popleft()
            self._backlog_bytes -= len(message[3])
            self._start(message)
        if not self._backlog:
            self._overrun = False  # the next message that is dropped is logged again

    async def _run(self, incoming: Incoming, reply: str) -> None:
        try:
            answer = await self._answer(incoming, reply)
        except asyncio.CancelledError:
            if reply:  # Only the bus cancels: it closes. Who waits should not wait until its time is over.
                self._respond(reply, error_reply(ErrorCode.UNAVAILABLE, "shutting down"), incoming)
            raise
        except Exception:  # noqa: BLE001 -- whatever a handler raises, its text stays here
            _log.exception("the handler of %s failed", incoming.subject)
            answer = error_reply(ErrorCode.INTERNAL, "internal error")
        if answer is None or not reply:
            return
        if self.bus.client.congested:
            try:
                # The request counts until then: with nats-server slow, what is answered is bounded as what runs is.
                await self.bus.transfers.room(incoming.deadline)
            except NotConnected as error:
                _log.info("an answer was dropped: %s", error)
                return
            except asyncio.CancelledError:
                self._respond(reply, answer, incoming)  # the bus closes, and sends what there is
                raise
        self._respond(reply, answer, incoming)

    def _respond(self, subject: str, reply: Reply, request: Incoming) -> None:
        """Send an answer, in chunks if it has to be; above the limit a 413 in its place."""
        size, limit = len(reply.body), self.bus.max_body
        if size > limit:
            reply = error_reply(ErrorCode.TOO_LARGE, ANSWER_TOO_LARGE, limit=limit, size=size)
        try:
            if len(reply.body) > self.bus.client.chunk:
                refusal = self.bus.transfers.keep(subject, reply, request)
                if refusal is None:
                    return
                reply = refusal
            self._send(subject, reply)
        except NotConnected:
            _log.info("an answer was dropped: not connected to nats-server")
        except (ValueError, BodyTooLarge):
            _log.exception("an answer could not be sent")
            self._send(subject, error_reply(ErrorCode.INTERNAL, "internal error"))

    def _send(self, subject: str, reply: Reply) -> None:
        head = encode_head(reply.headers)
        self.bus.client.check(subject, len(reply.body), len(head))
        self.bus.client.send(subject, "", head, reply.body)

    def _note(self, subject: str, connection: int, body: bytes) -> None:
        client = self.bus.client
        if client.connections == connection and not client.congested:  # another note follows
            client.send(subject, "", NOTE_HEAD, body)

    async def _answer(self, incoming: Incoming, reply: str) -> Reply | None:
        if self.answers and SIZE in incoming.headers:
            body = await self.bus.transfers.read_request(reply, incoming)
            if not isinstance(body, bytes):
                return body
            headers = {name: value for name, value in incoming.headers.items() if name not in (SIZE, CHUNKS)}
            incoming = replace(incoming, body=body, headers=headers)
        answer = await self.handler(incoming)
        if self.answers and not isinstance(answer, Reply):
            raise TypeError(f"a handler gave {type(answer).__name__} in place of a Reply")
        return answer


def _deadline(headers: Headers, arrived: float) -> float | None:
    """When the sender stops waiting, in loop time; None where it did not say (or not a number)."""
    budget = headers.get(BUDGET, "")
    if not (budget.isascii() and budget.isdigit()):
        return None
    return arrived + min(int(budget[:12]), _MAX_BUDGET_MS) / 1000
