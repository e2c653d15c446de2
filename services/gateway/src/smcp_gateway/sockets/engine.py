"""engine.io's server with bounded queues, and its polling clients. Only this package knows engine.io's internals."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import engineio
from aiohttp import ClientError, WSCloseCode, web
from engineio.async_socket import AsyncSocket
from engineio.exceptions import QueueEmpty
from engineio.packet import NOOP, PING

from smcp_auth.quotas import BodyBudget
from smcp_bus.limits import SLOWEST
from smcp_gateway.sockets.packet import Assembly, Frame
from smcp_gateway.sockets.websocket import LINGER_S, VERY_LARGE, WebSocketConnection, moved_bytes, noop
from smcp_proto.errors import RateLimited
from smcp_service.http_limits import let_in

SWEEP_S: Final = 1.0
"""Between two looks at the clients, at most; a line is looked at several times before its ping is overdue."""
_log: Final = logging.getLogger("smcp_gateway.sockets.engine")


PORTION: Final = 16
"""Packets that the writer gets at once: clients refuse a polling response of more than 16 packets."""
ROOMY: Final = 1024 * 1024
"""A large message may join a queue of at most so many bytes."""
_SIGNS: Final = (PING, NOOP)
"""Packets that only say that the gateway is there. They overtake large messages, which take long on a slow line."""
MOST_PACKETS: Final = 1024
"""Packets that one polling request may carry, since each costs time: a quick client sends hundreds."""
_SEPARATOR: Final = b"\x1e"


class SendQueue(asyncio.Queue[Any]):
    """engine.io's queue of packets to one client, and what the gateway knows of the client's connection.

    `put` never waits: it takes small messages (pings, notifications) until `limit` bytes wait. Then `cut_off` is called
    once, since the client does not read. Before a large message is put, `room` is awaited.
    """

    _queue: deque[Any]

    def __init__(self, limit: int, cut_off: "Callable[[SendQueue], None]") -> None:
        super().__init__()
        self._limit = limit
        self._cut_off: Callable[[SendQueue], None] | None = cut_off
        self._handed_out = 0
        self._handed_bytes = 0
        self._roomy = asyncio.Event()
        self._roomy.set()
        self._reader_waits = False
        self.bytes = 0
        self.at_once: Callable[[Frame], bool] | None = None
        """Writes a frame before which nothing waits; False: the frame has to wait here."""
        self.close_code: int = WSCloseCode.OK
        self.transport: asyncio.Transport | None = None
        self.moved: tuple[float, int] | None = None
        """When the line of a late client was looked at (monotonic), and how many bytes had moved on it by then."""
        self.tenant = ""
        """Its key or token, without authentication the client itself; empty until its CONNECT is accepted."""

    @property
    def held(self) -> int:
        """Bytes that wait, and those of the portion that the writer has and may not have written yet."""
        return self.bytes + self._handed_bytes

    @property
    def unsent(self) -> int:
        """`held`, and what was written that the socket has not taken yet."""
        return self.held + (0 if self.transport is None else self.transport.get_write_buffer_size())

    @property
    def has_room(self) -> bool:
        """Whether a large message may be put: the client has read most of what was sent before, or is gone."""
        return self.bytes <= ROOMY or self._cut_off is None

    def attach(self, transport: asyncio.Transport, at_once: Callable[[Frame], bool]) -> None:
        self.transport, self.at_once = transport, at_once
        if self.tenant:
            let_in(transport)

    def let_in(self, tenant: str) -> None:
        self.tenant = tenant
        let_in(self.transport)

    async def wait_writable(self) -> None:
        while not self.has_room:
            await self._roomy.wait()  # another large message may have gone first: look again

    def release(self) -> None:
        """The client is gone: nobody waits for room any more, and the writer ends."""
        self._cut_off = None
        self._roomy.set()
        self.put_nowait(None)

    def put_nowait(self, item: Any) -> None:
        at_once = self.at_once
        if at_once is not None and self._reader_waits and not self._queue and isinstance(item, Frame) and at_once(item):
            return
        super().put_nowait(item)

    async def get(self) -> Any:
        """For the writer: the first packet of its next portion. What it had before has been written."""
        self._handed_out = self._handed_bytes = 0
        self._reader_waits = True
        try:
            return await super().get()
        finally:
            self._reader_waits = False

    def get_nowait(self) -> Any:
        """For the writer: one more packet of its portion. Raises QueueEmpty: nothing waits, or the portion is full."""
        if self._handed_out >= PORTION:
            raise asyncio.QueueEmpty
        packet = super().get_nowait()  # `get` calls this, too
        self._handed_out += 1
        return packet

    def _put(self, item: Any) -> None:
        if getattr(item, "packet_type", None) in _SIGNS:
            self._queue.appendleft(item)
        else:
            self._queue.append(item)
        self.bytes += _size(item)
        if self._cut_off is None:
            return
        if self.bytes > ROOMY:
            self._roomy.clear()
        if self.bytes > self._limit:
            cut_off, self._cut_off = self._cut_off, None
            cut_off(self)

    def _get(self) -> Any:
        item = self._queue.popleft()
        size = _size(item)
        self.bytes -= size
        self._handed_bytes += size
        if self.bytes <= ROOMY:
            self._roomy.set()
        return item


def _size(packet: Any) -> int:
    if isinstance(packet, Frame):
        return packet.size
    data = getattr(packet, "data", None)
    return len(data) if isinstance(data, str | bytes) else 0


class Engine(engineio.AsyncServer):
    """engine.io's server with a `SendQueue` of `send_queue_limit` bytes for each client.

    Messages have at most `max_message` bytes (`max_event` if not an ack); the rest is dropped. A client
    is sent a ping each `ping_s` seconds; one that hears nothing for twice as long takes the gateway for gone.
    """

    def __init__(
        self, logger: logging.Logger, *, max_message: int, max_event: int, send_queue_limit: int, ping_s: float
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            async_mode="aiohttp",
            monitor_clients=False,
            logger=logger,
            async_handlers=False,
            max_http_buffer_size=max_message,
            cors_allowed_origins=lambda *_: True,  # the edge has checked it; engine.io's own check believes any client
            ping_interval=ping_s,
            # engine.io tells clients the whole seconds of the interval; they wait for the sum
            ping_timeout=2 * ping_s - int(ping_s),
        )
        # engine.io's own WebSocket has a task and a timer for each message; it has no option for another one
        self._async: dict[str, Any] = {**self._async, "websocket": WebSocketConnection}
        self._send_queue_limit = send_queue_limit
        self.bodies = BodyBudget(max_message)
        """Of messages of which the rest is to come, or that wait to be handled."""
        self.max_event = max_event
        self.cut_off = 0
        self._pings: dict[str, asyncio.Task[Any]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.on_message: Callable[[str, bytes | bytearray, int], Awaitable[None] | None]
        """A message came, with so many bytes before it was cut off. The next one is read after what this returns."""

    async def handle_request(self, request: web.Request) -> web.StreamResponse:
        """As engine.io's, which parses, copies and compresses polled messages of any size in one go."""
        socket = self.sockets.get(request.query.get("sid", ""))
        is_polling = request.query.get("transport", "polling") == "polling" and "Upgrade" not in request.headers
        if is_polling and socket is not None and socket.connected and not socket.upgraded:
            if request.method == "GET":
                return await self._send_polled(socket, request)
            if request.method == "POST":
                return await self._receive_polled(socket, request)
        answer: web.StreamResponse = await super().handle_request(request)  # type: ignore[no-untyped-call]
        return answer

    async def _send_polled(self, socket: Any, request: web.Request) -> web.Response:
        try:
            packets = [noop()] if socket.upgrading else await socket.poll()
        except QueueEmpty:
            await self.close_socket(socket, self.reason.TRANSPORT_ERROR)
            packets = None
        if socket.closed:
            self.sockets.pop(socket.sid, None)
        if packets is None:
            return _answer(request, b"the session has ended", status=400)
        parts: list[bytes] = []
        for packet in packets:
            parts += (_SEPARATOR, *(packet.parts if isinstance(packet, Frame) else (packet.encode(b64=True).encode(),)))
        return _answer(request, b"".join(parts[1:]))

    async def _receive_polled(self, socket: Any, request: web.Request) -> web.Response:
        """Handle the packets of the request's body as they come, undecoded. What is no such body ends the session."""
        size = packets = 0
        try:
            with self.bodies.of(socket.queue.tenant) as hold:
                whole = Assembly(self.max_event, hold)
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    packets += chunk.count(_SEPARATOR)
                    if size > self.max_http_buffer_size or packets >= MOST_PACKETS:
                        await self.close_socket(socket, self.reason.TRANSPORT_ERROR)
                        why = f"at most {self.max_http_buffer_size} bytes and {MOST_PACKETS} packets"
                        return _answer(request, why.encode(), status=413)
                    *pieces, last = chunk.split(_SEPARATOR)
                    for piece in pieces:
                        whole.add(piece)
                        await self._handle_polled(socket, whole)
                        whole = Assembly(self.max_event, hold)
                    whole.add(last)
                if request.content_length in (None, size):
                    await self._handle_polled(socket, whole)
                    return _answer(request, b"OK")
        except (ClientError, ConnectionError, RuntimeError):
            pass  # it hung up in the middle of the request; RuntimeError: before it was read at all
        except RateLimited as error:
            await self.close_socket(socket, self.reason.TRANSPORT_ERROR)
            return _answer(request, error.message.encode(), status=429)
        await self.close_socket(socket, self.reason.TRANSPORT_ERROR)
        return _answer(request, b"", status=400)

    async def _handle_polled(self, socket: Any, whole: Assembly) -> None:
        if not socket.closed:
            text = whole.text
            if len(text) >= VERY_LARGE:
                await asyncio.sleep(0)
            if (work := self.received(socket, text, whole.size)) is not None:
                await work

    def received(self, socket: AsyncSocket, text: bytes | bytearray, size: int) -> Awaitable[Any] | None:
        """Handle a packet of engine.io; arguments and result as `on_message`."""
        match text[:1]:
            case b"4":
                return self.on_message(socket.sid, text, size)
            case b"3":
                socket.schedule_ping()  # type: ignore[no-untyped-call]
            case b"1":
                return self.close_socket(socket, self.reason.CLIENT_DISCONNECT)
            case _:
                _log.debug("a packet that is not engine.io's was ignored")
        return None

    async def close_socket(self, socket: AsyncSocket, reason: str) -> None:
        await socket.close(wait=False, abort=True, reason=reason)  # type: ignore[no-untyped-call]

    def spawn(
        self, work: Coroutine[Any, Any, None], ended: "Callable[[asyncio.Task[None]], None] | None" = None
    ) -> "asyncio.Task[None]":
        """Run it in a task. `ended` is called after it, also if it never began, and takes it out of `tasks`."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(ended or self.tasks.discard)
        return task

    def create_queue(self, *args: Any, **kwargs: Any) -> SendQueue:
        return SendQueue(self._send_queue_limit, self._cut_off)

    def start_background_task(
        self, target: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any
    ) -> "asyncio.Task[Any]":
        """As engine.io's; the task that sends a client's next ping ends with the client."""
        task = asyncio.get_running_loop().create_task(target(*args, **kwargs))
        socket = getattr(target, "__self__", None)
        if isinstance(socket, AsyncSocket):
            self._pings[socket.sid] = task
        return task

    def send_queue(self, sid: str) -> SendQueue | None:
        socket = self.sockets.get(sid)
        if socket is None or socket.closed:
            return None
        send_queue: SendQueue = socket.queue
        return send_queue

    async def sweep(self) -> None:
        pause = min(SWEEP_S, float(self.ping_timeout) / 4)
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause)
            # while this process was suspended it read no answers: that time does not count
            own_delay = max(time.monotonic() - began - pause, 0.0)
            for sid in list(self.sockets):
                await self._look_at(sid, own_delay, pause)

    async def _look_at(self, sid: str, own_delay: float, pause: float) -> None:
        # A call of its own: between two sweeps nothing refers to a client that has gone, and to its queue.
        socket = self.sockets.get(sid)
        if socket is None:
            return
        if socket.last_ping:
            socket.last_ping += own_delay
        if socket.closed:
            self.sockets.pop(sid, None)
        elif not socket.closing:
            send_queue = socket.queue
            if not socket.last_ping or time.time() - socket.last_ping < pause / 2:
                send_queue.moved = None
            elif send_queue.transport is not None and _moves(send_queue, send_queue.transport):
                socket.last_ping = time.time()  # the answer to the ping is late because the line is busy
                if not send_queue.transport.get_write_buffer_size():  # it is writing, and must hear that we are there
                    send_queue.put_nowait(noop())
            await socket.check_ping_timeout()

    async def hang_up(self, sid: str, code: int) -> None:
        """Close a client's connection, its WebSocket with `code`, after what waits for it. Without engine.io's CLOSE:
        clients take that for the end, and a closed transport for a reason to come back."""
        socket = self.sockets.get(sid)
        if socket is not None:
            socket.queue.close_code = code
            await socket.close(wait=False, abort=True, reason=self.reason.SERVER_DISCONNECT)

    def ended(self, sid: str) -> None:
        """A client is gone: nobody waits for it, and its TCP connection does not outlive it for long."""
        ping = self._pings.pop(sid, None)
        if ping is not None and ping is not asyncio.current_task():
            ping.cancel()
        if (send_queue := self.send_queue(sid)) is not None:
            send_queue.release()
            if send_queue.transport is not None:
                asyncio.get_running_loop().call_later(LINGER_S, send_queue.transport.abort)

    def _cut_off(self, send_queue: SendQueue) -> None:
        client = next((each for each in self.sockets.values() if each.queue is send_queue), None)
        if client is None:
            return
        self.cut_off += 1
        _log.warning("a client does not read; it is cut off", extra={"waiting_bytes": send_queue.bytes})
        if send_queue.transport is not None:
            send_queue.transport.abort()
        self.spawn(client.close(wait=False, abort=True, reason=self.reason.TRANSPORT_ERROR))


def _moves(send_queue: SendQueue, transport: asyncio.Transport) -> bool:
    """Whether enough has moved on a client's line since the last look at it; the first look sees nothing."""
    now, moved, before = time.monotonic(), moved_bytes(transport), send_queue.moved
    send_queue.moved = (now, moved)
    return before is not None and moved - before[1] >= SLOWEST * max(now - before[0], 0.1)


def _answer(request: web.Request, body: bytes, status: int = 200) -> web.Response:
    answer = web.Response(body=body, status=status, content_type="text/plain", charset="utf-8")
    if (origin := request.headers.get("Origin")) is not None:  # the edge has let it through
        answer.headers.update({"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"})
    return answer
