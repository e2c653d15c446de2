"""engine.io, fitted to the gateway: bounded outboxes, and connections that really end.

All of engine.io's inner names that the gateway relies on are in this file and in `connection.py`.
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
from engineio import packet as engine_packet
from engineio import payload as engine_payload
from engineio.async_drivers.aiohttp import translate_request
from engineio.async_socket import AsyncSocket
from engineio.exceptions import EngineIOError

from smcp_gateway.sockets.connection import LINGER_S, Connection, Progress
from smcp_gateway.sockets.expiry import Strangers
from smcp_gateway.sockets.handshake import unknown_session
from smcp_gateway.sockets.outbox import Gathering, Outbox
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
from smcp_proto.errors import Internal

SWEEP_S: Final = 1.0
"""Between two looks at the clients, at most; a line is looked at several times before its ping is overdue."""

_log: Final = logging.getLogger("smcp_gateway.sockets.engine")


class Engine(engineio.AsyncServer):
    """engine.io's server with an `Outbox` for each client."""

    def __init__(self, *, outbox_limit: int, **options: Any) -> None:
        super().__init__(async_mode="aiohttp", monitor_clients=False, **options)  # type: ignore[no-untyped-call]
        self._async: dict[str, Any] = {**(self._async or {}), "websocket": Connection, "translate_request": _environ}
        self._outbox_limit = outbox_limit
        self._pings: dict[str, asyncio.Task[Any]] = {}
        self._progress = Progress()
        self._tasks: set[asyncio.Task[None]] = set()
        self.tcp: dict[str, asyncio.Transport] = {}
        self.on_message: Callable[[str, bytes, int], Awaitable[None]] | None = None
        self.on_message_at_once: Callable[[str, bytes, int], bool] = lambda sid, text, start: False

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

    async def message(self, sid: str, text: bytes, start: int) -> None:
        """A Socket.IO packet came over a WebSocket; it begins at `start`."""
        if self.on_message is not None:
            await self.on_message(sid, text, start)

    def message_at_once(self, sid: str, text: bytes, start: int) -> bool:
        """See `connection.EngineServer`."""
        return self.on_message_at_once(sid, text, start)

    def outbox(self, sid: str) -> Outbox | None:
        """Where what is written to a client waits; None when the client is gone."""
        socket = self.sockets.get(sid)
        if socket is None or socket.closed:
            return None
        return self.outbox_of(socket)

    @staticmethod
    def outbox_of(socket: AsyncSocket) -> Outbox:
        """The `Outbox` of a socket, under engine.io's name for it."""
        outbox: Outbox = socket.queue
        return outbox

    async def sweep(self) -> None:
        """Close the clients that do not answer pings, until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(self._sweep_s)
            # while this process stood still it heard no answer: that time is not the clients'
            own_delay = max(time.monotonic() - began - self._sweep_s, 0.0)
            for sid in list(self.sockets):
                await self._look_at(sid, own_delay)

    async def _look_at(self, sid: str, own_delay: float) -> None:
        """A call of its own: between two sweeps nothing refers to a client that has gone, and to its outbox."""
        socket = self.sockets.get(sid)
        if socket is None:
            return
        if socket.last_ping:
            socket.last_ping += own_delay
        if socket.closed:
            self.sockets.pop(sid, None)
        elif not socket.closing:
            if self._on_its_way(socket):
                self._be_patient(socket)
            await socket.check_ping_timeout()

    @property
    def _sweep_s(self) -> float:
        return min(SWEEP_S, float(self.ping_timeout) / 4)

    def _on_its_way(self, socket: AsyncSocket) -> bool:
        """Whether the answer to a ping is late because the line is busy."""
        transport = self.tcp.get(socket.sid)
        if transport is None or not socket.last_ping or time.time() - socket.last_ping < self._sweep_s / 2:
            self._progress.forget(socket.sid)
            return False
        return self._progress.moves(socket.sid, transport, time.monotonic())

    def _be_patient(self, socket: AsyncSocket) -> None:
        socket.last_ping = time.time()
        if not self.tcp[socket.sid].get_write_buffer_size():  # it is writing, and must hear that we are there
            socket.queue.put_nowait(engine_packet.Packet(engine_packet.NOOP))  # type: ignore[no-untyped-call]

    async def hang_up(self, sid: str, code: int) -> None:
        """Close a client's connection; what waits for it is still written, for a while, and nothing more is read.

        Without engine.io's CLOSE: clients take that for the end, and a closed transport for a reason to come back.

        Args:
            code: what a WebSocket is closed with.
        """
        socket = self.sockets.get(sid)
        if socket is not None:
            self.outbox_of(socket).last_word = code
            await socket.close(wait=False, abort=True, reason=self.reason.SERVER_DISCONNECT)

    def ended(self, sid: str) -> None:
        """A client is gone: nobody waits for it, and its TCP connection does not outlive it for long."""
        self._progress.forget(sid)
        ping = self._pings.pop(sid, None)
        if ping is not None and ping is not asyncio.current_task():
            ping.cancel()
        if (outbox := self.outbox(sid)) is not None:
            outbox.release()
            outbox.put_nowait(None)  # ends the writer, or the polling request that waits for something to read
        if (transport := self.tcp.get(sid)) is not None:
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def _closing(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cut_off(self, outbox: Outbox) -> None:
        for sid, socket in self.sockets.items():
            if socket.queue is outbox:
                _log.warning("a client does not read; it is cut off", extra={"waiting_bytes": outbox.bytes})
                if (transport := self.tcp.get(sid)) is not None:
                    transport.abort()
                self._closing(socket.close(wait=False, abort=True, reason=self.reason.TRANSPORT_ERROR))
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


POLLING_PACKETS: Final = 1024
"""Packets that one polling request may carry; engine.io's own 16 loses the calls of a client that is quick."""


_INTERNAL: Final = orjson.dumps(Internal("internal error").body().model_dump())

OnConnect = Callable[[str, dict[str, Any], object], Awaitable[None]]
OnDisconnect = Callable[[str, str], Awaitable[None]]
OnEvent = Callable[[str, Inbound], Awaitable[bytes | None]]
"""Session and event in, the JSON of the acknowledgement's argument out; None where the session is gone."""
OnAck = Callable[[str, int, bytes | None], None]
"""Session, id of the packet, and what was acknowledged; None: it cannot be read."""


class Server(socketio.AsyncServer):
    """python-socketio's server on `Engine`, for one namespace: connecting is its, events go straight to `on_event`, and
    acknowledgements to `on_ack`: python-socketio's own table of callbacks is not used.

    Args:
        max_message: bytes that one message of a client may have.
        outbox_limit: bytes that may wait for a client that does not read.
        ping_s: seconds between two pings; who hears nothing for twice as long is alone.
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
    ) -> None:
        logger = logging.getLogger("smcp_gateway.socketio")
        logger.setLevel(logging.ERROR)
        super().__init__(  # type: ignore[no-untyped-call]
            namespaces=[NAMESPACE],
            logger=logger,
            engineio_logger=logger,
            max_http_buffer_size=max_message,
            outbox_limit=outbox_limit,
            ping_interval=ping_s,
            # engine.io tells clients the whole seconds of the interval; they wait for the sum
            ping_timeout=2 * ping_s - int(ping_s),
        )
        engine_payload.Payload.max_decode_packets = max(engine_payload.Payload.max_decode_packets, POLLING_PACKETS)
        self.on("connect", on_connect, namespace=NAMESPACE)  # type: ignore[no-untyped-call]
        self.on("disconnect", on_disconnect, namespace=NAMESPACE)  # type: ignore[no-untyped-call]
        self._on_event = on_event
        self._on_ack = on_ack
        self._events: set[asyncio.Task[None]] = set()
        self._gathering = Gathering()
        self.strangers: Strangers | None = None
        """Those that have not said yet who they are; None: nobody has to."""
        self.eio.on_message = self._on_packet
        self.eio.on_message_at_once = self._on_packet_at_once

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to `/socket.io/`."""
        sid = request.query.get("sid")
        if sid is not None and ((known := self.eio.sockets.get(sid)) is None or known.closed):
            return unknown_session()  # engine.io would raise for one that has just ended
        answer: web.StreamResponse = await self.handle_request(request)  # type: ignore[no-untyped-call]
        return answer

    def send_frame(self, engine_ids: Iterable[str], frame: Frame) -> None:
        """Write a frame to each of these clients, under load together with others; nobody is waited for."""
        outboxes = [self.eio.outbox(engine_id) for engine_id in engine_ids]
        self._gathering.tell([outbox for outbox in outboxes if outbox is not None], frame)

    def _engineio_server_class(self) -> type[Engine]:
        return Engine

    async def _handle_eio_message(self, eio_sid: str, data: str | bytes) -> None:  # type: ignore[override]
        if isinstance(data, str):  # from a polling client; bytes are attachments, which nobody waits for
            await self._on_packet(eio_sid, data.encode("utf-8", "replace"))

    def _on_packet_at_once(self, eio_sid: str, text: bytes, start: int) -> bool:
        """False: it is about the connection, and may have to wait for something."""
        match read_packet(text, start):
            case ClientEvent() | ClientAck() as packet:
                self._on_said(eio_sid, packet)
                return True
            case None:
                return True
            case _:
                return False

    async def _on_packet(self, eio_sid: str, text: bytes, start: int = 0) -> None:
        match read_packet(text, start):
            case ClientEvent() | ClientAck() as packet:
                self._on_said(eio_sid, packet)
            case ClientConnect(namespace, auth):
                await self._handle_connect(eio_sid, namespace, auth)  # type: ignore[no-untyped-call]
                self._has_connected(eio_sid, known=self.manager.sid_from_eio_sid(eio_sid, NAMESPACE) is not None)
            case ClientDisconnect(namespace):
                await self._handle_disconnect(  # type: ignore[no-untyped-call]
                    eio_sid, namespace, self.reason.CLIENT_DISCONNECT
                )
                if self.strangers is not None:
                    self.strangers.came(eio_sid, time.monotonic())

    def _on_said(self, eio_sid: str, packet: ClientEvent | ClientAck) -> None:
        sid = self.manager.sid_from_eio_sid(eio_sid, packet.namespace)
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

    def _has_connected(self, eio_sid: str, *, known: bool) -> None:
        if self.strangers is None:
            return
        if known or eio_sid not in self.eio.sockets:
            self.strangers.left(eio_sid)
        else:
            self.strangers.was_refused(eio_sid, time.monotonic())

    async def close_strangers(self) -> None:
        """Close the connections of those that did not say in time who they are, or were refused."""
        for eio_sid in [] if self.strangers is None else self.strangers.overdue(time.monotonic()):
            await self.eio.hang_up(eio_sid, WSCloseCode.POLICY_VIOLATION)

    async def _handle_eio_connect(self, eio_sid: str, environ: dict[str, Any]) -> None:  # type: ignore[override]
        await super()._handle_eio_connect(eio_sid, environ)  # type: ignore[no-untyped-call]
        if self.strangers is not None:
            self.strangers.came(eio_sid, time.monotonic())

    async def _handle_eio_disconnect(self, eio_sid: str, reason: str) -> None:  # type: ignore[override]
        try:
            await super()._handle_eio_disconnect(eio_sid, reason)  # type: ignore[no-untyped-call]
        finally:
            if self.strangers is not None:
                self.strangers.left(eio_sid)
            self.eio.ended(eio_sid)
