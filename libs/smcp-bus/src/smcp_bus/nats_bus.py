"""The bus over one connection to nats-server."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from nats import errors as nats_errors
from nats.js import JetStreamContext

from smcp_bus.bus import NO_HEADERS, Connection, Headers, NoticeHandler, Reply, RequestHandler, Watcher
from smcp_bus.byte_budget import ByteBudget
from smcp_bus.chunks import (
    CHUNKS,
    GONE,
    MAX_CHUNK,
    SIZE,
    Outgoing,
    announced_plan,
    chunk_head,
    is_chunk,
)
from smcp_bus.chunks_pull import Pulling
from smcp_bus.credentials import Credentials
from smcp_bus.errors import (
    BodyTooLarge,
    BusError,
    ConnectionLost,
    NoResponder,
    NotConnected,
    RequestTimedOut,
    TransferFailed,
)
from smcp_bus.headers import NOT_RUN
from smcp_bus.inbox import Inbox
from smcp_bus.nats_client import NatsClient
from smcp_bus.nats_headers import decode_head, encode_head, encode_request_head, is_no_responders
from smcp_bus.nats_serving import Backlog, Listening, Serving, error_reply
from smcp_proto.errors import ErrorCode

_log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
OPEN_CREDENTIAL: Final = "open"
"""The credential's name where nats-server asks for none."""

_WHITE_SPACE: Final = re.compile(r"\s")
_HEADROOM: Final = 16 * 1024
"""Of a message's size, kept free for its headers."""
_FLUSH_S: Final = 5.0
_BUFFER_S: Final = 60.0
"""How long the rest of a reply is kept for one who did not say how long he waits."""
_SLOW_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    """How to reach nats-server, and what this process may hold."""

    url: str
    """`nats://host:port`, several with commas."""
    credentials: Credentials | None = None
    max_payload: int = 32 * MIB
    """Bytes of the largest body, in and out."""
    name: str = "smcp"
    """Shown by nats-server's monitoring."""
    budget_bytes: int | None = None
    """Of chunked bodies on their way in, together; None is four times `max_payload`."""
    process: str | None = None
    """The process id; None makes one."""
    connect_timeout: float = 10.0
    """Seconds in which the first connection has to stand. After that it comes back by itself, for ever."""
    drain_timeout: float = 5.0
    """Seconds that closing waits for handlers that still run."""
    ping_interval: int = 5
    """Seconds between pings; a connection that does not answer two of them is broken."""
    backlog_messages: int = 65536
    backlog_bytes: int = 64 * MIB
    """What may wait for its turn in one subscription; more is dropped and told as `Connection.SLOW`."""


@dataclass(frozen=True, slots=True)
class BusStats:
    """What the bus holds now."""

    pending: int
    """Places in the inbox: requests that wait, bodies on their way in and out."""
    running: int
    """Handlers that run."""
    waiting: int
    """Messages that wait for a handler."""
    outgoing_bytes: int
    """Of bodies that are kept until they are pulled."""
    budget_used: int
    budget_waiting: int
    """Bodies that wait for a share of the budget."""


class _Waiter:
    """A request that waits for its answer; a place in the inbox."""

    __slots__ = ("future", "outgoing", "subject")

    def __init__(
        self, future: "asyncio.Future[tuple[str, bytes, bytes] | BusError]", subject: str, outgoing: Outgoing | None
    ) -> None:
        self.future = future
        self.subject = subject
        self.outgoing = outgoing

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        if head and is_chunk(head):
            if self.outgoing is not None:
                self.outgoing.answer(reply, head)
        elif not self.future.done():
            self.future.set_result((reply, head, body))

    def lost(self) -> None:
        self.fail(ConnectionLost("the connection to nats-server broke"))

    def expire(self) -> None:
        self.fail(RequestTimedOut("no answer in time"))

    def fail(self, error: BusError) -> None:
        if not self.future.done():
            self.future.set_result(error)


class _Kept:
    """The rest of a reply, until it was pulled; a place in the inbox."""

    __slots__ = ("leave", "outgoing")

    def __init__(self, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self.leave: Callable[[], None] = lambda: None

    def receive(self, reply: str, head: bytes, _body: bytes) -> None:
        if is_chunk(head):
            self.outgoing.answer(reply, head)
            if self.outgoing.done:
                self.leave()

    def lost(self) -> None:
        """Stays: who asked may still be connected, and pull when we are back."""


class NatsBus:
    """A `Bus` over nats-server. Made by `open_bus`."""

    def __init__(self, config: BusConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._client = NatsClient(self._came_up, self._went_down, self._denied)
        credentials = config.credentials
        self._process = config.process or uuid4().hex
        self._inbox_prefix = credentials.inbox_prefix if credentials else "_INBOX"
        self._inbox = Inbox(self._inbox_prefix, self._process, self._stray)
        self._max_body = config.max_payload
        self._chunk = MAX_CHUNK
        self._budget = ByteBudget(config.budget_bytes or 4 * config.max_payload)
        self._watchers: list[Watcher] = []
        self._received: dict[int, Serving | Listening] = {}
        self._kept: set[_Kept] = set()
        self._slow_timer: asyncio.TimerHandle | None = None
        self._slow_again = False
        self._last_error: Exception | None = None

    # -- what it is

    @property
    def connected(self) -> bool:
        return self._client.up

    @property
    def max_body(self) -> int:
        return self._max_body

    @property
    def process(self) -> str:
        """This process's id on the bus, new at every run."""
        return self._process

    @property
    def credential(self) -> str:
        """The name of this process's credential; `open` where it has none."""
        return self._config.credentials.name if self._config.credentials else OPEN_CREDENTIAL

    @property
    def inbox_prefix(self) -> str:
        return self._inbox_prefix

    def jetstream(self) -> JetStreamContext:
        """JetStream over the same connection; for the registry alone."""
        return self._client.jetstream()

    def stats(self) -> BusStats:
        places = self._inbox.places.values()
        kept = sum(
            place.outgoing.plan.total
            for place in places
            if isinstance(place, _Waiter | _Kept) and place.outgoing is not None
        )
        return BusStats(
            pending=len(places),
            running=sum(received.running for received in self._received.values()),
            waiting=sum(received.waiting for received in self._received.values()),
            outgoing_bytes=kept,
            budget_used=self._budget.used,
            budget_waiting=self._budget.waiting,
        )

    # -- asking and telling

    async def request(
        self, subject: str, body: bytes, *, timeout: float, headers: Headers = NO_HEADERS
    ) -> Reply:
        """See `Bus.request`."""
        client = self._client
        deadline = self._loop.time() + timeout
        outgoing: Outgoing | None = None
        part: bytes | memoryview = body
        if len(body) > self._chunk:
            if len(body) > self._max_body:
                raise BodyTooLarge(len(body), self._max_body)
            outgoing = Outgoing(client, body, self._chunk)
            headers = {**outgoing.headers, **headers}
            part = outgoing.first
        if client.congested:
            await self._room(deadline)
        head = encode_request_head(headers, int(timeout * 1000))
        self._check(subject, head, part)
        waiter = _Waiter(self._loop.create_future(), subject, outgoing)
        token, reply_subject = self._inbox.enter(waiter)
        timer = self._loop.call_at(deadline, waiter.expire)
        try:
            client.send(subject, reply_subject, head, part)
            result = await waiter.future
        finally:
            timer.cancel()
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
            answer = await self._read_reply(address, answer_headers, answer, deadline)
            answer_headers = _without_sizes(answer_headers)
        return Reply(answer, answer_headers)

    async def publish(self, subject: str, body: bytes, *, headers: Headers = NO_HEADERS) -> None:
        """See `Bus.publish`."""
        if self._client.congested:
            await self._room(self._loop.time() + _FLUSH_S)
        head = encode_head(headers)
        self._check(subject, head, body)
        self._client.send(subject, "", head, body)

    async def flush(self, timeout: float = _FLUSH_S) -> None:
        """Wait until nats-server has taken all that was sent and subscribed before.

        Raises:
            NotConnected, ConnectionLost, RequestTimedOut: it may not have.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._client.round_trip()
        except TimeoutError as error:
            raise RequestTimedOut("nats-server did not answer in time") from error

    def _check(self, subject: str, head: bytes, body: bytes | memoryview) -> None:
        if not self._client.up:
            raise NotConnected("not connected to nats-server")
        if not subject or _WHITE_SPACE.search(subject):
            raise ValueError("a subject is not empty and holds no white space")
        limit = self._client.max_payload
        if len(head) + len(body) > limit:
            raise BodyTooLarge(len(body), limit - len(head))

    async def _room(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._client.room()
        except TimeoutError as error:
            raise NotConnected("nats-server does not take what is sent") from error

    # -- serving and listening

    async def serve(
        self, subject: str, handler: RequestHandler, *, queue: str = "", limit: int = 1024
    ) -> Serving:
        """See `Bus.serve`.

        Raises:
            NotConnected, ConnectionLost, RequestTimedOut: it is not subscribed.
            BusError: nats-server's permissions refuse it.
        """
        serving = Serving(self, subject, self._backlog(), handler, limit, self._read_request, _is_partial)
        await self._subscribe(serving, queue)
        return serving

    async def listen(self, subject: str, handler: NoticeHandler) -> Listening:
        """See `Bus.listen`; raises as `serve`."""
        listening = Listening(self, subject, self._backlog(), handler)
        await self._subscribe(listening, "")
        return listening

    def _backlog(self) -> Backlog:
        return Backlog(self._config.backlog_messages, self._config.backlog_bytes)

    async def _subscribe(self, received: Serving | Listening, queue: str) -> None:
        subject = received.subject
        if not self._client.up:
            raise NotConnected("not connected to nats-server")
        if not subject or _WHITE_SPACE.search(subject) or _WHITE_SPACE.search(queue):
            raise ValueError("a subject is not empty, and neither it nor a queue holds white space")
        denial = f'for subscription to "{subject.lower()}"'
        for old in [text for text in self._client.denials if denial in text]:
            self._client.denials.remove(old)
        sid = self._client.attach(subject, queue, received.receive)
        received.sid = sid
        self._received[sid] = received
        try:
            await self.flush()
            if any(denial in text for text in self._client.denials):
                raise BusError(f"not permitted to subscribe to {subject}")
        except BaseException:
            self._client.unsubscribe_at_server(sid)
            self._client.detach(sid)
            del self._received[sid]
            await received.abandon()
            raise

    async def release(self, sid: int) -> None:
        """For a subscription that is left."""
        self._client.unsubscribe_at_server(sid)
        try:
            await self.flush()
        except BusError:
            pass  # not connected: nothing arrives, and it will not be subscribed again
        finally:
            self._client.detach(sid)
            self._received.pop(sid, None)

    def respond(self, subject: str, reply: Reply, deadline: float | None) -> None:
        """Answer a request; for `Serving`."""
        if not self._client.up:
            _log.info("an answer was dropped: not connected to nats-server")
            return
        body = reply.body
        if len(body) > self._max_body:
            reply = error_reply(
                ErrorCode.TOO_LARGE, "the answer is too large", limit=self._max_body, size=len(body)
            )
            body = reply.body
        try:
            if len(body) > self._chunk:
                self._keep(subject, reply, deadline)
                return
            head = encode_head(reply.headers)
            self._check(subject, head, body)
        except (ValueError, BodyTooLarge):
            _log.exception("an answer could not be sent")
            reply = error_reply(ErrorCode.INTERNAL, "internal error")
            head, body = encode_head(reply.headers), reply.body
        self._client.send(subject, "", head, body)

    def _keep(self, subject: str, reply: Reply, deadline: float | None) -> None:
        outgoing = Outgoing(self._client, reply.body, self._chunk)
        head = encode_head({**outgoing.headers, **reply.headers})
        self._check(subject, head, outgoing.first)
        kept = _Kept(outgoing)
        token, own_subject = self._inbox.enter(kept)
        until = self._loop.time() + _BUFFER_S if deadline is None else deadline
        timer = self._loop.call_at(until, self._inbox.leave, token)

        def leave() -> None:
            timer.cancel()
            self._inbox.leave(token)

        kept.leave = leave
        self._client.send(subject, own_subject, head, outgoing.first)

    # -- chunked bodies

    async def _read_reply(self, address: str, headers: Headers, first: bytes, deadline: float) -> bytes:
        try:
            return await self._pull(address, headers, first, deadline)
        except BodyTooLarge as error:
            raise TransferFailed(f"the answer says it has {error.size} bytes, above {error.limit}") from error

    async def _read_request(
        self, address: str, headers: Headers, first: bytes, deadline: float | None
    ) -> bytes | Reply | None:
        until = self._loop.time() + _BUFFER_S if deadline is None else deadline
        try:
            return await self._pull(address, headers, first, until)
        except BodyTooLarge as error:
            return error_reply(
                ErrorCode.TOO_LARGE, "the request is too large", limit=error.limit, size=error.size
            )
        except (RequestTimedOut, ConnectionLost):
            return None
        except TransferFailed as error:
            _log.warning("a request was dropped: %s", error)
            return error_reply(
                ErrorCode.UNAVAILABLE, "the request did not arrive whole", {NOT_RUN: "1"}
            )

    async def _pull(self, address: str, headers: Headers, first: bytes, deadline: float) -> bytes:
        plan = announced_plan(headers, len(first), self._max_body)
        if not address:
            raise TransferFailed("a chunked body without a way to its rest")
        pulling = Pulling(self._client, address, plan, first)
        token, pulling.subject = self._inbox.enter(pulling)
        timer = self._loop.call_at(deadline, pulling.expire)
        grant = self._budget.ask(plan.total, pulling.start)
        try:
            result = await pulling.future
        finally:
            grant.release()
            timer.cancel()
            pulling.stop()
            self._inbox.leave(token)
        if isinstance(result, BusError):
            raise result
        return result

    def _stray(self, reply: str, head: bytes) -> None:
        if is_chunk(head) and self._client.up:
            self._client.send(reply, "", chunk_head(GONE), b"")

    # -- the connection

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """See `Bus.watch`. A watcher that raises is logged, and does not keep the others from being told."""
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop

    def _tell(self, what: Connection) -> None:
        for watcher in list(self._watchers):
            try:
                watcher(what)
            except Exception:
                _log.exception("a watcher of the connection failed")

    def _came_up(self) -> None:
        self._last_error = None
        limit = self._client.max_payload
        self._chunk = min(MAX_CHUNK, max(limit - _HEADROOM, limit // 2))
        self._tell(Connection.UP)

    def _went_down(self) -> None:
        _log.warning("the connection to nats-server broke; connecting again")
        self._tell(Connection.DOWN)
        self._inbox.lose_all()

    def overrun(self, subject: str, dropped: int) -> None:
        """For a subscription that had to drop a message."""
        if dropped == 1:
            _log.error("messages on %s are dropped: too many wait for their turn", subject)
        self._slow()

    def _slow(self) -> None:
        # At the first drop, and once more after a pause with further drops: who repairs at the first must not
        # miss what was dropped while he did.
        if self._slow_timer is not None:
            self._slow_again = True
            return
        self._slow_timer = self._loop.call_later(_SLOW_PAUSE_S, self._slow_over)
        self._tell(Connection.SLOW)

    def _slow_over(self) -> None:
        self._slow_timer = None
        if self._slow_again:
            self._slow_again = False
            self._slow()

    def _denied(self, text: str) -> None:
        _log.warning("nats-server refused: %s", text)
        for place in list(self._inbox.places.values()):
            if isinstance(place, _Waiter) and f'for publish to "{place.subject.lower()}"' in text:
                place.fail(NoResponder("not permitted to ask on this subject"))

    async def _error(self, error: Exception) -> None:
        if isinstance(error, nats_errors.SlowConsumerError):
            _log.error("nats-py dropped a message: %s", error)
            self._slow()
            return
        self._last_error = error
        _log.debug("nats-py: %r", error)

    # -- its life

    async def open(self) -> None:
        """For `open_bus`."""
        config = self._config
        options: dict[str, Any] = {
            "servers": config.url.split(","),
            "name": config.name,
            "error_cb": self._error,
            "disconnected_cb": self._client.disconnected,
            "reconnected_cb": self._client.reconnected,
            "reconnect_to_server_handler": self._client.choose_server,
            "connect_timeout": 2,
            "reconnect_time_wait": 0.1,
            "max_reconnect_attempts": -1,
            "ping_interval": config.ping_interval,
            "max_outstanding_pings": 2,
            "pending_size": 0,  # nothing is kept while there is no connection
            "inbox_prefix": self._inbox_prefix,
        }
        if config.credentials is not None:
            options.update(user=config.credentials.name, password=config.credentials.secret)
        try:
            async with asyncio.timeout(config.connect_timeout):
                await self._client.connect(**options)
                await self._client.reconnected()
                self._inbox.subscribe(self._client)
                await self._client.round_trip()
        except BaseException as error:
            await self._client.shut(0)
            if isinstance(error, TimeoutError | BusError | nats_errors.Error):
                raise NotConnected(
                    f"nats-server at {_address(config.url)} could not be reached within "
                    f"{config.connect_timeout:g} s: {self._last_error or error!r}"
                ) from error
            raise

    async def close(self) -> None:
        """For `open_bus`: first what runs, then the connection."""
        left = list(self._received.values())
        tasks = [self._loop.create_task(received.drain()) for received in left]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=self._config.drain_timeout)
        finally:
            for task in tasks:
                task.cancel()
            for received in left:
                await received.abandon()
            if self._slow_timer is not None:
                self._slow_timer.cancel()
            self._inbox.lose_all()
            await self._client.shut(1.0)


def _is_partial(headers: Headers) -> bool:
    return SIZE in headers


def _without_sizes(headers: Headers) -> Headers:
    return {name: value for name, value in headers.items() if name not in (SIZE, CHUNKS)}


def _address(url: str) -> str:
    """The hosts of a URL without what may be secret in it."""
    parts = [urlsplit(one if "//" in one else f"nats://{one}") for one in url.split(",")]
    return ", ".join(part.netloc.rpartition("@")[2] for part in parts)


@asynccontextmanager
async def open_bus(config: BusConfig) -> AsyncIterator[NatsBus]:
    """Connect, and on leaving wait for handlers that run, then close.

    Raises:
        NotConnected: there was no connection within `connect_timeout`; says to which address and why.
    """
    bus = NatsBus(config)
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()
