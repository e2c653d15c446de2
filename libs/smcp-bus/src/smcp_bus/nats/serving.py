"""The receiving side of the bus: requests in bounded tasks, notifications one after another."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import orjson

from smcp_bus.bus import Headers, Incoming, NoticeHandler, Reply, RequestHandler
from smcp_bus.errors import NotConnected
from smcp_bus.headers import BUDGET, ERROR
from smcp_bus.nats.chunks import CHUNKS, SIZE
from smcp_bus.nats.inbox import is_inbox
from smcp_bus.nats.wire import decode_head
from smcp_proto.errors import ErrorCode

_log = logging.getLogger(__name__)


def error_reply(code: ErrorCode, message: str, headers: Headers | None = None, **details: Any) -> Reply:
    """An `ErrorBody` with its header, as the bus itself answers."""
    body: dict[str, Any] = {"code": int(code), "message": message}
    if details:
        body["details"] = details
    return Reply(orjson.dumps(body), {ERROR: str(int(code)), **(headers or {})})


class Host(Protocol):
    """What a subscription needs of its bus."""

    async def release(self, sid: int) -> None:
        """Unsubscribe; returns when nothing more can arrive for it."""

    async def read_request(
        self, address: str, headers: Headers, first: bytes, deadline: float | None
    ) -> bytes | Reply | None:
        """The whole body of a request of which `first` came; the Reply that refuses it; None where nobody waits."""

    @property
    def congested(self) -> bool:
        """Whether so much waits to be written that an answer should `await room()` first."""

    async def room(self, deadline: float | None) -> None:
        """Wait while too much waits to be written. Raises NotConnected: there is no sense in waiting any more."""

    def respond(self, subject: str, reply: Reply, deadline: float | None) -> None:
        """Send an answer, in chunks if it has to be. What cannot be sent is logged."""

    def overrun(self, subject: str, dropped: int) -> None:
        """A message was dropped because too many wait."""


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
        """False where it is full."""
        size = len(item[3])
        if len(self._items) >= self._messages or self._size + size > self._limit:
            return False
        self._items.append(item)
        self._size += size
        return True

    def take(self) -> tuple[str, str, bytes, bytes, float]:
        """The one that waits longest. Raises IndexError: nothing waits."""
        item = self._items.popleft()
        self._size -= len(item[3])
        return item

    def clear(self) -> None:
        """Forget what waits."""
        self._items.clear()
        self._size = 0


class _Received:
    """What serving and listening share: a backlog, tasks, and how to leave."""

    def __init__(self, host: Host, subject: str, backlog: Backlog) -> None:
        self._host = host
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
            self._host.overrun(self.subject, self._dropped)

    def _spawn(self, work: Coroutine[Any, Any, None], done: "Callable[[asyncio.Task[None]], None]") -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)

    async def drain(self) -> None:
        if not self._leaving:
            self._leaving = True
            await self._host.release(self.sid)
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
        host: Host,
        subject: str,
        backlog: Backlog,
        handler: RequestHandler,
        limit: int,
    ) -> None:
        super().__init__(host, subject, backlog)
        self._handler = handler
        self._limit = limit

    def receive(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        """A request came: run its handler, or let it wait. What asks for no answer of ours is dropped."""
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
            self._host.respond(reply, error_reply(ErrorCode.UNAVAILABLE, "shutting down"), None)
            raise
        except Exception:  # noqa: BLE001 -- whatever a handler raises, its text stays here
            _log.exception("the handler of %s failed", incoming.subject)
            answer = error_reply(ErrorCode.INTERNAL, "internal error")
        if answer is None:
            return
        if self._host.congested:
            try:
                # The request counts until then: with nats-server slow, what is answered is bounded as what runs is.
                await self._host.room(incoming.deadline)
            except NotConnected as error:
                _log.info("an answer was dropped: %s", error)
                return
            except asyncio.CancelledError:
                self._host.respond(reply, answer, incoming.deadline)  # the bus closes, and sends what there is
                raise
        self._host.respond(reply, answer, incoming.deadline)

    async def _answer(self, incoming: Incoming, reply: str) -> Reply | None:
        if SIZE in incoming.headers:
            body = await self._host.read_request(reply, incoming.headers, incoming.body, incoming.deadline)
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

    def __init__(self, host: Host, subject: str, backlog: Backlog, handler: NoticeHandler) -> None:
        super().__init__(host, subject, backlog)
        self._handler = handler

    def receive(self, subject: bytes, _reply: bytes, head: bytes, body: bytes) -> None:
        """A notification came: its handler runs after those of the ones before."""
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
