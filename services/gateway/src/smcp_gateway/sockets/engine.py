"""python-socketio and engine.io, fitted to the gateway: the one module that knows what is inside of them.

Connecting and disconnecting are python-socketio's; events and acknowledgements are cut out of their packets and go
straight to the gateway, and what is written waits in an `Outbox` that is bounded in bytes. What an event means is not
known here.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

import engineio
import orjson
import socketio
from aiohttp import StreamReader, WSCloseCode, web
from engineio.async_drivers.aiohttp import translate_request
from engineio.async_socket import AsyncSocket
from engineio.exceptions import EngineIOError
from engineio.payload import Payload

from smcp_gateway.sockets.outbox import Outbox
from smcp_gateway.sockets.packet import (
    NAMESPACE,
    ClientAck,
    ClientConnect,
    ClientDisconnect,
    ClientEvent,
    Frame,
    Inbound,
    ack_frame,
    read_packet,
)
from smcp_gateway.sockets.websocket import LINGER_S, Connection, moved_bytes, noop
from smcp_proto.errors import Internal, Malformed

SWEEP_S: Final = 1.0
"""Between two looks at the clients, at most; a line is looked at several times before its ping is overdue."""
SLOWEST: Final = 16 * 1024
"""Bytes a second; a line that moves less stands still."""
POLLING_PACKETS: Final = 1024
"""Packets that one polling request may carry; engine.io's own 16 loses the calls of a client that is quick."""
CONNECT_S: Final = 10.0
"""How long a client may take to connect to the namespace, where it has to say who it is."""
REFUSED_S: Final = 1.0
"""How long one that was refused may take to hear so."""

_INTERNAL: Final = orjson.dumps(Internal("internal error").body().model_dump())

_log: Final = logging.getLogger("smcp_gateway.sockets.engine")

OnConnect = Callable[[str, dict[str, Any], object], Awaitable[None]]
OnDisconnect = Callable[[str, str], Awaitable[None]]
OnEvent = Callable[[str, Inbound], Awaitable[bytes | None]]
"""Session and event in, the JSON of the acknowledgement's argument out; None where the session is gone."""
OnAck = Callable[[str, int, bytes | None], None]
"""Session, id of the packet, and what was acknowledged; None: it cannot be read."""


class Engine(engineio.AsyncServer):
    """engine.io's server with an `Outbox` for each client."""

    def __init__(self, *, outbox_limit: int, **options: Any) -> None:
        super().__init__(async_mode="aiohttp", monitor_clients=False, **options)  # type: ignore[no-untyped-call]
        # engine.io's own WebSocket has a task and a timer for each message, and takes what has come of a polling
        # request for all of it; it has no option for another one
        driver = {"websocket": Connection, "translate_request": _environ}
        self._async: dict[str, Any] = {**self._async, **driver}
        self._outbox_limit = outbox_limit
        self._pings: dict[str, asyncio.Task[Any]] = {}
        self._moved: dict[str, tuple[float, int]] = {}
        """When a late client's line was looked at, and what had moved on it by then."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.tcp: dict[str, asyncio.Transport] = {}
        self.on_message: Callable[[str, bytes, int], Awaitable[None]]
        """A Socket.IO packet came over a WebSocket; it begins at the number."""

    def create_queue(self, *args: Any, **kwargs: Any) -> Outbox:
        """What engine.io makes for each client; here with a bound in bytes."""
        return Outbox(self._outbox_limit, self._cut_off)

    def start_background_task(
        self, target: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any
    ) -> "asyncio.Task[Any]":
        """As engine.io's; the task that sends a client's next ping ends with the client."""
        task = asyncio.get_running_loop().create_task(target(*args, **kwargs))
        socket = getattr(target, "__self__", None)
        if isinstance(socket, AsyncSocket):
            self._pings[socket.sid] = task
        return task

    def outbox(self, sid: str) -> Outbox | None:
        """Where what is written to a client waits; None when the client is gone."""
        socket = self.sockets.get(sid)
        if socket is None or socket.closed:
            return None
        outbox: Outbox = socket.queue
        return outbox

    async def sweep(self) -> None:
        """Close the clients that do not answer pings, until cancelled."""
        pause = min(SWEEP_S, float(self.ping_timeout) / 4)
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause)
            # while this process stood still it heard no answer: that time is not the clients'
            own_delay = max(time.monotonic() - began - pause, 0.0)
            for sid in list(self.sockets):
                await self._look_at(sid, own_delay, pause)

    async def _look_at(self, sid: str, own_delay: float, pause: float) -> None:
        # A call of its own: between two sweeps nothing refers to a client that has gone, and to its outbox.
        socket = self.sockets.get(sid)
        if socket is None:
            return
        if socket.last_ping:
            socket.last_ping += own_delay
        if socket.closed:
            self.sockets.pop(sid, None)
        elif not socket.closing:
            if not socket.last_ping or time.time() - socket.last_ping < pause / 2:
                self._moved.pop(sid, None)
            elif self._moves(sid):  # the answer to the ping is late because the line is busy
                socket.last_ping = time.time()
                if not self.tcp[sid].get_write_buffer_size():  # it is writing, and must hear that we are there
                    socket.queue.put_nowait(noop())
            await socket.check_ping_timeout()

    def _moves(self, sid: str) -> bool:
        """Whether enough has moved on a client's line since the last look at it; the first look sees nothing."""
        transport = self.tcp.get(sid)
        if transport is None:
            return False
        now, moved = time.monotonic(), moved_bytes(transport)
        before = self._moved.get(sid)
        self._moved[sid] = (now, moved)
        return before is not None and moved - before[1] >= SLOWEST * max(now - before[0], 0.1)

    async def hang_up(self, sid: str, code: int) -> None:
        """Close a client's connection; what waits for it is still written, for a while, and nothing more is read.

        Without engine.io's CLOSE: clients take that for the end, and a closed transport for a reason to come back.

        Args:
            code: what a WebSocket is closed with.
        """
        socket = self.sockets.get(sid)
        if socket is not None:
            socket.queue.close_code = code
            await socket.close(wait=False, abort=True, reason=self.reason.SERVER_DISCONNECT)

    def ended(self, sid: str) -> None:
        """A client is gone: nobody waits for it, and its TCP connection does not outlive it for long."""
        self._moved.pop(sid, None)
        ping = self._pings.pop(sid, None)
        if ping is not None and ping is not asyncio.current_task():
            ping.cancel()
        if (outbox := self.outbox(sid)) is not None:
            outbox.release()
            outbox.put_nowait(None)  # ends the writer, or the polling request that waits for something to read
        if (transport := self.tcp.get(sid)) is not None:
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def _cut_off(self, outbox: Outbox) -> None:
        for sid, client in self.sockets.items():
            if client.queue is outbox:
                _log.warning("a client does not read; it is cut off", extra={"waiting_bytes": outbox.bytes})
                if (transport := self.tcp.get(sid)) is not None:
                    transport.abort()
                closing = client.close(wait=False, abort=True, reason=self.reason.TRANSPORT_ERROR)
                task = asyncio.get_running_loop().create_task(closing)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return


class _Body:
    """What a polling client posts, whole: aiohttp's `read(n)` gives what has come so far, and engine.io takes that for
    all of it."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content

    async def read(self, length: int) -> bytes:
        try:
            return await self._content.readexactly(length)
        except asyncio.IncompleteReadError:
            raise EngineIOError("the client hung up in the middle of a request") from None


def _environ(request: web.Request) -> dict[str, Any]:
    environ: dict[str, Any] = translate_request(request)  # type: ignore[no-untyped-call]
    return {**environ, "wsgi.input": _Body(request.content)}


class Server:
    """python-socketio's server on `Engine`, for one namespace.

    Args:
        max_message: bytes that one message of a client may have.
        outbox_limit: bytes that may wait for a client that does not read.
        ping_s: seconds between two pings; a client that hears nothing for twice as long takes the gateway for gone.
        authenticated: whether a client has to say who it is, in time.
    """

    def __init__(
        self,
        on_connect: OnConnect,
        on_disconnect: OnDisconnect,
        on_event: OnEvent,
        on_ack: OnAck,
        *,
        max_message: int,
        outbox_limit: int,
        ping_s: float,
        authenticated: bool,
    ) -> None:
        logger = logging.getLogger("smcp_gateway.socketio")
        logger.setLevel(logging.ERROR)
        untyped: Any = socketio.AsyncServer
        self._sio = untyped(namespaces=[NAMESPACE], logger=logger, engineio_logger=logger)
        self._sio.on("connect", on_connect, namespace=NAMESPACE)
        self._sio.on("disconnect", on_disconnect, namespace=NAMESPACE)
        self.reason = self._sio.reason
        self.eio = Engine(
            logger=logger,
            async_handlers=False,
            max_http_buffer_size=max_message,
            outbox_limit=outbox_limit,
            ping_interval=ping_s,
            # engine.io tells clients the whole seconds of the interval; they wait for the sum
            ping_timeout=2 * ping_s - int(ping_s),
        )
        Payload.max_decode_packets = max(Payload.max_decode_packets, POLLING_PACKETS)
        handlers = self._sio.eio.handlers  # python-socketio's
        self._sio.eio = self.eio
        self._opened, self._ended, self._sio_packet = (handlers[name] for name in ("connect", "disconnect", "message"))
        self.eio.on("connect", self._on_open)  # type: ignore[no-untyped-call]
        self.eio.on("disconnect", self._on_end)  # type: ignore[no-untyped-call]
        self.eio.on("message", self._on_polled)  # type: ignore[no-untyped-call]
        self.eio.on_message = self._on_packet
        self._on_event = on_event
        self._on_ack = on_ack
        self._events: set[asyncio.Task[None]] = set()
        self._authenticated = authenticated
        self._connecting: dict[str, float] = {}
        """Clients that have to say who they are, and have not yet: until when each is waited for (monotonic)."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to `/socket.io/`."""
        sid = request.query.get("sid")
        if sid is not None and ((known := self.eio.sockets.get(sid)) is None or known.closed):
            return _unknown_session()  # engine.io would raise for one that has just ended
        answer: web.StreamResponse = await self._sio.handle_request(request)
        return answer

    def send_frame(self, engine_ids: Iterable[str], frame: Frame) -> None:
        """Write a frame to each of these clients; nobody is waited for."""
        for engine_id in engine_ids:
            if (outbox := self.eio.outbox(engine_id)) is not None:
                outbox.put_nowait(frame)

    def engine_id(self, sid: str) -> str:
        """engine.io's id of a client in the namespace."""
        engine_id: str = self._sio.manager.eio_sid_from_sid(sid, NAMESPACE)
        return engine_id

    async def close_unauthenticated(self) -> None:
        """Close the connections of clients that did not say in time who they are, or were refused."""
        now = time.monotonic()
        for eio_sid in [sid for sid, until in self._connecting.items() if until <= now]:
            del self._connecting[eio_sid]
            await self.eio.hang_up(eio_sid, WSCloseCode.POLICY_VIOLATION)

    async def _on_open(self, eio_sid: str, environ: dict[str, Any]) -> None:
        await self._opened(eio_sid, environ)
        self._await_connect(eio_sid, CONNECT_S)

    async def _on_end(self, eio_sid: str, reason: str) -> None:
        try:
            await self._ended(eio_sid, reason)
        finally:
            self._connecting.pop(eio_sid, None)
            self.eio.ended(eio_sid)

    async def _on_polled(self, eio_sid: str, data: str | bytes) -> None:
        if isinstance(data, str):  # bytes are attachments, which nobody waits for
            await self._on_packet(eio_sid, data.encode("utf-8", "replace"), 0)

    async def _on_packet(self, eio_sid: str, text: bytes, start: int) -> None:
        match read_packet(text, start):
            case ClientEvent() | ClientAck() as packet:
                self._on_said(eio_sid, packet)
            case ClientConnect(namespace, auth):
                await self._sio_packet(eio_sid, f"0{namespace},{'' if auth is None else orjson.dumps(auth).decode()}")
                if self._sio.manager.sid_from_eio_sid(eio_sid, NAMESPACE) is not None:
                    self._connecting.pop(eio_sid, None)
                elif eio_sid in self.eio.sockets:
                    self._await_connect(eio_sid, REFUSED_S)
            case ClientDisconnect(namespace):
                await self._sio_packet(eio_sid, f"1{namespace},")
                self._await_connect(eio_sid, CONNECT_S)

    def _await_connect(self, eio_sid: str, seconds: float) -> None:
        if self._authenticated:
            until = time.monotonic() + seconds
            self._connecting[eio_sid] = min(until, self._connecting.get(eio_sid, until))

    def _on_said(self, eio_sid: str, packet: ClientEvent | ClientAck) -> None:
        sid = self._sio.manager.sid_from_eio_sid(eio_sid, packet.namespace)
        if sid is None:
            return
        if isinstance(packet, ClientAck):
            self._on_ack(sid, packet.id, packet.argument)
            return
        task = asyncio.get_running_loop().create_task(self._answer(eio_sid, sid, packet.id, packet.inbound))
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def _answer(self, eio_sid: str, sid: str, packet_id: int | None, inbound: Inbound) -> None:
        try:
            argument = await self._on_event(sid, inbound)
        except asyncio.CancelledError:
            return  # its client is gone
        except Exception:  # noqa: BLE001 -- the outermost edge: it is logged, and the client gets its answer
            _log.exception("an event could not be answered")
            argument = _INTERNAL
        if packet_id is None or argument is None:
            return
        if (outbox := self.eio.outbox(eio_sid)) is not None:
            outbox.put_nowait(ack_frame(packet_id, argument))


def _unknown_session() -> web.Response:
    error = Malformed(
        "sid: no such session at this replica: it has ended, or the proxy is not sticky by client address, which "
        "polling needs (WebSocket alone does not)",
        details={"field": "sid"},
    )
    return web.json_response(error.body().model_dump(), status=error.code, headers={"Cache-Control": "no-store"})
