"""The receiving side of the bus: requests in bounded tasks, notifications one after another."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import orjson

from smcp_bus.bus import Headers, Incoming, NoticeHandler, Reply, RequestHandler
from smcp_bus.errors import NotConnected
from smcp_bus.headers import BUDGET, ERROR
from smcp_bus.nats.chunks import CHUNKS, SIZE
from smcp_bus.nats.inbox import is_inbox
from smcp_bus.nats.wire import decode_head
from smcp_proto.errors import ErrorCode

if TYPE_CHECKING:
    from smcp_bus.nats.bus import NatsBus

_log = logging.getLogger(__name__)


def error_reply(code: ErrorCode, message: str, headers: Headers | None = None, **details: Any) -> Reply:
    body: dict[str, Any] = {"code": int(code), "message": message}
    if details:
        body["details"] = details
    return Reply(orjson.dumps(body), {ERROR: str(int(code)), **(headers or {})})


class Backlog:
    """What waits for its turn, in arrival order, bounded in messages and in bytes."""

    def __init__(self, messages: int, size: int) -> None:
        self._items: deque[tuple[str, str, bytes, bytes, float]] = deque()
        self._messages = messages
        self._limit = size
        self._size = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: tuple[str, str, bytes, bytes, float]) -> bool:
        size = len(item[3])
        if len(self._items) >= self._messages or self._size + size > self._limit:
            return False
        self._items.append(item)
        self._size += size
        return True

    def take(self) -> tuple[str, str, bytes, bytes, float]:
        item = self._items.popleft()
        self._size -= len(item[3])
        return item

    def clear(self) -> None:
        self._items.clear()
        self._size = 0


class _Received:
    def __init__(self, bus: "NatsBus", subject: str, backlog: Backlog) -> None:
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._backlog = backlog
        self._tasks: set[asyncio.Task[None]] = set()
        self._dropped = 0
        self.subject = subject
        self.sid = 0
        self._leaving = False

    @property
    def running(self) -> int:
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        return len(self._backlog)

    def _keep(self, item: tuple[str, str, bytes, bytes, float]) -> None:
        if not self._backlog.put(item):
            self._dropped += 1
            self._bus.overrun(self.subject, self._dropped)

    def _spawn(self, work: Coroutine[Any, Any, None], done: "Callable[[asyncio.Task[None]], None]") -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)

    async def drain(self) -> None:
        if not self._leaving:
            self._leaving = True
            await self._bus.release(self.sid)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def abandon(self) -> None:
        """Give up what waits, cancel what runs, and wait until it has ended."""
        self._backlog.clear()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


class Serving(_Received):
    """Requests on one subject: a task for each, at most `limit` at a time."""

    def __init__(
        self,
        bus: "NatsBus",
        subject: str,
        backlog: Backlog,
        handler: RequestHandler,
        limit: int,
    ) -> None:
        super().__init__(bus, subject, backlog)
        self._handler = handler
        self._limit = limit

    def receive(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        if not reply:
            _log.debug("dropped a message on %s that asks for no answer", self.subject)
            return
        if not is_inbox(reply):
            _log.warning("dropped a request on %s that wants its answer outside of the inboxes", self.subject)
            return
        item = (subject.decode(), reply.decode(), head, body, self._loop.time())
        if len(self._tasks) < self._limit:
            self._start(item)
        else:
            self._keep(item)

    def _start(self, item: tuple[str, str, bytes, bytes, float]) -> None:
        subject, reply, head, body, arrived = item
        headers = decode_head(head)
        deadline = _deadline(headers, arrived)
        if deadline is not None and deadline <= self._loop.time():
            return  # nobody waits for it any more
        self._spawn(self._run(Incoming(subject, body, headers, deadline), reply), self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        while self._backlog and len(self._tasks) < self._limit:
            self._start(self._backlog.take())

    async def _run(self, incoming: Incoming, reply: str) -> None:
        try:
            answer = await self._answer(incoming, reply)
        except asyncio.CancelledError:
            # Only the bus cancels: it closes. Who waits should not wait until its time is over.
            self._bus.respond(reply, error_reply(ErrorCode.UNAVAILABLE, "shutting down"), None)
            raise
        except Exception:  # noqa: BLE001 -- whatever a handler raises, its text stays here
            _log.exception("the handler of %s failed", incoming.subject)
            answer = error_reply(ErrorCode.INTERNAL, "internal error")
        if answer is None:
            return
        if self._bus.congested:
            try:
                # The request counts until then: with nats-server slow, what is answered is bounded as what runs is.
                await self._bus.room(incoming.deadline)
            except NotConnected as error:
                _log.info("an answer was dropped: %s", error)
                return
            except asyncio.CancelledError:
                self._bus.respond(reply, answer, incoming.deadline)  # the bus closes, and sends what there is
                raise
        self._bus.respond(reply, answer, incoming.deadline)

    async def _answer(self, incoming: Incoming, reply: str) -> Reply | None:
        if SIZE in incoming.headers:
            body = await self._bus.read_request(reply, incoming.headers, incoming.body, incoming.deadline)
            if not isinstance(body, bytes):
                return body
            headers = {name: value for name, value in incoming.headers.items() if name not in (SIZE, CHUNKS)}
            incoming = Incoming(incoming.subject, body, headers, incoming.deadline)
        answer = await self._handler(incoming)
        if not isinstance(answer, Reply):
            raise TypeError(f"a handler gave {type(answer).__name__} in place of a Reply")
        return answer


class Listening(_Received):
    """Notifications on one subject, one after another."""

    def __init__(self, bus: "NatsBus", subject: str, backlog: Backlog, handler: NoticeHandler) -> None:
        super().__init__(bus, subject, backlog)
        self._handler = handler

    def receive(self, subject: bytes, _reply: bytes, head: bytes, body: bytes) -> None:
        self._keep((subject.decode(), "", head, body, 0.0))
        if not self._tasks and self._backlog:
            self._spawn(self._work(), self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._backlog and not task.cancelled():
            self._spawn(self._work(), self._ended)  # came after the last look into the backlog

    async def _work(self) -> None:
        while self._backlog:
            subject, _, head, body, _ = self._backlog.take()
            try:
                await self._handler(Incoming(subject, body, decode_head(head)))
            except Exception:  # noqa: BLE001 -- the next notification has nothing to do with this one
                _log.exception("the handler of notifications on %s failed", subject)


_MAX_BUDGET_MS: Final = 24 * 3600 * 1000


def _deadline(headers: Headers, arrived: float) -> float | None:
    """When the sender stops waiting, in loop time; None where it did not say (or not a number)."""
    budget = headers.get(BUDGET, "")
    if not (budget.isascii() and budget.isdigit()):
        return None
    return arrived + min(int(budget[:12]), _MAX_BUDGET_MS) / 1000
