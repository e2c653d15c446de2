"""What arrives: requests and notifications, handled in bounded tasks; and answers, at the inbox of this process."""

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from smcp_bus import bus
from smcp_bus.bus import BusError, Incoming, NotConnected, Reply, error_reply
from smcp_bus.headers import BUDGET, PROGRESS
from smcp_bus.nats.client import LONGEST_SUBJECT
from smcp_bus.nats.wire import NOTE_HEAD, SIZE, decode_head, encode_head, without_plan
from smcp_proto.errors import ANSWER_TOO_LARGE, Internal, TooLarge, Unavailable

if TYPE_CHECKING:
    from smcp_bus.nats.bus import Bus

_log = logging.getLogger(__name__)

ROOT: Final = "_INBOX"
"""Every inbox of the system lies under it: `_INBOX.<credential>`, or `_INBOX` itself without credentials."""

_SECRET: Final = 8
_EARLY_S: Final = 0.001
"""By how much a timer of uvloop may be early: it counts whole milliseconds."""
T = TypeVar("T")


def is_inbox(address: bytes) -> bool:
    """Whether an answer may go there. nats-server does not check the reply subject of a request, and the process that
    answers may have more rights than the sender (a registry may write the log of the rooms)."""
    return address.startswith(b"_INBOX.") and len(address) <= LONGEST_SUBJECT


class Entry:
    """What answers at one address of the inbox."""

    __slots__ = ()
    deadline = math.inf
    """When it fails as timed out (loop time)."""

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        """A message came. It must neither block nor raise."""

    def lost(self) -> None:
        """The connection broke."""

    def fail(self, error: BusError) -> None:
        """The outcome is this error, unless there is one."""


class Awaited(Entry, Generic[T]):
    """`future` ends with what is awaited, or at `deadline` (loop time) with a `BusError` as its result. It never
    raises, so asyncio has no exception to report if the waiting task was cancelled."""

    __slots__ = ("deadline", "future")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.future: asyncio.Future[T | BusError] = asyncio.get_running_loop().create_future()

    def lost(self) -> None:
        self.fail(bus.ConnectionLost("the connection to nats-server broke"))

    def fail(self, error: BusError) -> None:
        if not self.future.done():
            self.future.set_result(error)


class Inbox:
    """`<prefix>.<process>.*`: token → entry, until `leave`. What arrives for a token that has gone is dropped.

    One timer ends all that wait for too long: a timer of each would cost more than its entry.
    """

    def __init__(self, prefix: str, process: str) -> None:
        self._root = f"{prefix}.{process}."
        self.subject = f"{self._root}*"
        self._cut = len(self._root)
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._expires_at = math.inf
        """When the timer runs out, at the earliest deadline (loop time)."""
        self.entries: dict[bytes, Entry] = {}

    def enter(self, entry: Entry) -> tuple[bytes, str]:
        """Give `entry` a token; returns it and the subject that reaches it."""
        self._count += 1
        # A responder learns one token. It must not be able to guess another one, and reply there.
        token = f"{self._count:x}-{os.urandom(_SECRET).hex()}"
        key = token.encode()
        self.entries[key] = entry
        if entry.deadline < self._expires_at:
            self._expire_at(entry.deadline)
        return key, self._root + token

    def _expire_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._expires_at = deadline
        self._timer = None
        if deadline < math.inf:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        due = asyncio.get_running_loop().time() + _EARLY_S
        for entry in [each for each in self.entries.values() if each.deadline <= due]:
            entry.fail(bus.RequestTimedOut("the answer did not arrive in time"))
        later = (entry.deadline for entry in self.entries.values() if entry.deadline > due)
        self._expire_at(min(later, default=math.inf))

    def leave(self, token: bytes) -> None:
        self.entries.pop(token, None)

    def lose_all(self) -> None:
        for entry in list(self.entries.values()):
            entry.lost()

    def receive(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        if reply and not is_inbox(reply):
            _log.debug("a message wants its answer outside of the inboxes; it gets none")
            reply = b""
        entry = self.entries.get(subject[self._cut :])
        if entry is not None:
            entry.receive(reply.decode(), head, body)


_Message = tuple[str, str, bytes, bytes, float]
"""Subject, reply subject, header block, body, and when it arrived (loop time)."""


@dataclass(eq=False, repr=False)
class Serving:
    """The messages on one subject: a task for each, at most `limit` at a time; the others wait.

    Of requests that wait the offices take turns. One that is too much is dropped if its office has as many as others on
    average; else one of the office with the most is. Notifications are handled as they arrive.
    """

    bus: "Bus"
    subject: str
    handler: Callable[[Incoming], Awaitable[Reply | None]]
    _: KW_ONLY
    limit: int
    answers: bool
    """Whether they are requests. One that asks for no answer is dropped."""
    sid: int = field(default=0, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _backlog: dict[tuple[str, ...], deque[_Message]] = field(default_factory=dict, init=False)
    """What waits, by office or, of hosts and operators, credential (the first tokens of the subject); in the order of
    their turns."""
    waiting: int = field(default=0, init=False)
    _backlog_bytes: int = field(default=0, init=False)
    _overrun: bool = field(default=False, init=False)
    _leaving: bool = field(default=False, init=False)

    @property
    def running(self) -> int:
        return len(self._tasks)

    async def drain(self) -> None:
        if not self._leaving:
            self._leaving = True
            await self.bus.release(self.sid)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def abandon(self) -> None:
        """Give up what waits, cancel what runs, and wait until it has ended."""
        self._backlog.clear()
        self.waiting = 0
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def receive(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        if self.answers and not is_inbox(reply):
            _log.debug("dropped a message on %s that wants no answer, or wants it outside of the inboxes", self.subject)
            return
        message = (subject.decode(), reply.decode() if self.answers else "", head, body, self._loop.time())
        if len(self._tasks) < self.limit:
            self._start(message)
            return
        office = tuple(message[0].split(".", 4)[:4]) if self.answers else ()
        self._backlog.setdefault(office, deque()).append(message)
        self.waiting += 1
        self._backlog_bytes += len(body)
        while self.waiting > self.bus.config.backlog_messages or self._backlog_bytes > self.bus.config.backlog_bytes:
            own = len(self._backlog.get(office, ()))
            if own * len(self._backlog) < self.waiting:  # not for each message of a flood: there may be many offices
                office = max(self._backlog, key=lambda each: len(self._backlog[each]))
            self._take(office, newest=True)
            if not self._overrun:
                self._overrun = True
                _log.error("messages on %s are dropped: too many wait for their turn", self.subject)
            self.bus.dropped()

    def _take(self, office: tuple[str, ...], *, newest: bool = False) -> _Message:
        queue = self._backlog[office]
        message = queue.pop() if newest else queue.popleft()
        if not newest or not queue:
            del self._backlog[office]
        if not newest and queue:
            self._backlog[office] = queue  # behind the others
        self.waiting -= 1
        self._backlog_bytes -= len(message[3])
        return message

    def _start(self, message: _Message) -> None:
        subject, reply, head, body, arrived = message
        headers = decode_head(head)
        budget = headers.get(BUDGET, "") if self.answers else ""  # a peer may write anything
        deadline = arrived + int(budget[:12]) / 1000 if budget.isascii() and budget.isdigit() else None
        if deadline is not None and deadline <= self._loop.time():
            return  # nobody waits for it any more
        note = partial(self._note, reply, self.bus.connections) if reply and PROGRESS in headers else None
        task = self._loop.create_task(self._run(Incoming(subject, body, headers, deadline, note), reply))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        while self._backlog and len(self._tasks) < self.limit:
            self._start(self._take(next(iter(self._backlog))))
        if not self._backlog:
            self._overrun = False  # the next message that is dropped is logged again

    async def _run(self, incoming: Incoming, reply: str) -> None:
        try:
            answer = await self._answer(incoming, reply)
        except asyncio.CancelledError:
            if reply:  # Only the bus cancels: it closes. The sender should hear that before its time is over.
                self._respond(reply, error_reply(Unavailable("shutting down")), incoming)
            raise
        except Exception:  # noqa: BLE001 -- whatever a handler raises, its text stays here
            _log.exception("the handler of %s failed", incoming.subject)
            answer = error_reply(Internal("internal error"))
        if answer is None or not reply:
            return
        if self.bus.congested:
            try:
                # The request counts until then: with nats-server slow, what is answered is bounded as what runs is.
                await self.bus.wait_writable(self.bus.transfers.until(incoming.deadline))
            except NotConnected as error:
                _log.info("an answer was dropped: %s", error)
                return
            except asyncio.CancelledError:
                self._respond(reply, answer, incoming)  # the bus closes, and sends what there is
                raise
        self._respond(reply, answer, incoming)

    def _respond(self, subject: str, reply: Reply, request: Incoming) -> None:
        size, limit = len(reply.body), self.bus.max_body
        if size > limit:
            reply = error_reply(TooLarge(ANSWER_TOO_LARGE, details={"limit": limit, "size": size}))
        try:
            if len(reply.body) > self.bus.chunk:
                refusal = self.bus.transfers.keep(subject, reply, request)
                if refusal is None:
                    return
                reply = refusal
            self._send(subject, reply)
        except NotConnected:
            _log.info("an answer was dropped: not connected to nats-server")
        except (ValueError, bus.BodyTooLarge):
            _log.exception("an answer could not be sent")
            self._send(subject, error_reply(Internal("internal error")))

    def _send(self, subject: str, reply: Reply) -> None:
        head = encode_head(reply.headers)
        self.bus.check(subject, len(reply.body), len(head))
        self.bus.send(subject, "", head, reply.body)

    def _note(self, subject: str, connection: int, body: bytes) -> None:
        if self.bus.connections == connection and not self.bus.congested:  # another note follows
            self.bus.send(subject, "", NOTE_HEAD, body)

    async def _answer(self, incoming: Incoming, reply: str) -> Reply | None:
        if self.answers and SIZE in incoming.headers:
            body = await self.bus.transfers.read_request(reply, incoming)
            if not isinstance(body, bytes):
                return body
            incoming = replace(incoming, body=body, headers=without_plan(incoming.headers))
        return await self.handler(incoming)
