"""python-socketio and engine.io, fitted to the gateway: bounded outboxes, and connections that really end.

Not here: what an event means. All of python-socketio's inner names that the gateway relies on are in this file and in
`packet.py`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

import engineio
import socketio
from aiohttp import WSMsgType, web
from engineio import packet as engine_packet
from engineio import payload as engine_payload
from engineio.async_socket import AsyncSocket

from smcp_gateway.outbox import Outbox
from smcp_gateway.packet import GatewayPacket

NAMESPACE: Final = "/smcp"

PING_INTERVAL_S: Final = 4
PING_TIMEOUT_S: Final = 5
"""Together below 10 s: within that a half-open client is found."""
SWEEP_S: Final = 1.0

LINGER_S: Final = 5.0
"""How long a connection that was closed may take to say its last words."""

POLLING_PACKETS: Final = 1024
"""Packets that one polling request may carry; engine.io's own 16 loses the calls of a client that is quick."""

_log: Final = logging.getLogger("smcp_gateway.engine")

Handler = Callable[["Connection"], Awaitable[Any]]


class Connection:
    """A WebSocket of aiohttp with the methods that engine.io calls."""

    def __init__(self, handler: Handler, server: "Engine") -> None:
        self._handler = handler
        self._server = server
        self._socket = web.WebSocketResponse(max_msg_size=server.max_http_buffer_size)

    async def __call__(self, environ: dict[str, Any]) -> web.WebSocketResponse:
        request: web.Request = environ["aiohttp.request"]
        sid: str = self._handler.__self__.sid  # type: ignore[attr-defined] # a method of engine.io's socket
        await self._socket.prepare(request)
        if request.transport is not None:
            self._server.tcp[sid] = request.transport
        try:
            await self._handler(self)
        finally:
            self._server.tcp.pop(sid, None)
        return self._socket

    async def close(self) -> None:
        await self._socket.close()

    async def send(self, message: str | bytes) -> None:
        if isinstance(message, str):
            await self._socket.send_str(message)
        else:
            await self._socket.send_bytes(message)

    async def wait(self) -> str | bytes:
        message = await self._socket.receive()
        if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
            data: str | bytes = message.data
            return data
        raise OSError("the connection was closed")


class Engine(engineio.AsyncServer):
    """engine.io's server with an `Outbox` for each client."""

    def __init__(self, *, outbox_limit: int, **options: Any) -> None:
        super().__init__(async_mode="aiohttp", monitor_clients=False, **options)  # type: ignore[no-untyped-call]
        self._async: dict[str, Any] = {**(self._async or {}), "websocket": Connection}
        self._outbox_limit = outbox_limit
        self.tcp: dict[str, asyncio.Transport] = {}
        self._pings: dict[str, asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def create_queue(self, *args: Any, **kwargs: Any) -> Outbox:
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
        socket = self.sockets.get(sid)
        return None if socket is None else socket.queue

    async def sweep(self) -> None:
        """Close the clients that do not answer pings, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for socket in list(self.sockets.values()):
                if socket.closed:
                    self.sockets.pop(socket.sid, None)
                elif not socket.closing:
                    await socket.check_ping_timeout()

    async def hang_up(self, sid: str) -> None:
        """Close a client's connection; what waits for it is still written, for a while.

        Without engine.io's CLOSE: clients take that for the end, and a closed transport for a reason to come back.
        """
        socket = self.sockets.get(sid)
        if socket is not None:
            await socket.close(wait=False, abort=True, reason=self.reason.SERVER_DISCONNECT)

    def ended(self, sid: str) -> None:
        """A client is gone: nobody waits for it, and its TCP connection does not outlive it for long."""
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


class Server(socketio.AsyncServer):
    """python-socketio's server on `Engine`, for one namespace.

    Args:
        max_message: bytes that one message of a client may have.
        outbox_limit: bytes that may wait for a client that does not read.
    """

    def __init__(self, *, max_message: int, outbox_limit: int) -> None:
        logger = logging.getLogger("smcp_gateway.socketio")
        logger.setLevel(logging.ERROR)
        super().__init__(  # type: ignore[no-untyped-call]
            serializer=GatewayPacket,
            namespaces=[NAMESPACE],
            logger=logger,
            engineio_logger=logger,
            max_http_buffer_size=max_message,
            outbox_limit=outbox_limit,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
        )
        engine_payload.Payload.max_decode_packets = max(engine_payload.Payload.max_decode_packets, POLLING_PACKETS)

    def handle(self, event: str, handler: Callable[..., Awaitable[object]]) -> None:
        """Call `handler` for `connect`, `disconnect` or `EVENT_NAME`."""
        self.on(event, handler, namespace=NAMESPACE)  # type: ignore[no-untyped-call]

    def answer_in(self, app: web.Application) -> None:
        """Answer `/socket.io/` of `app`."""
        self.attach(app)  # type: ignore[no-untyped-call]

    async def send_text(self, engine_ids: Iterable[str], text: str) -> None:
        """Send a packet to each client; it is encoded once."""
        packet = engine_packet.Packet(engine_packet.MESSAGE, text)  # type: ignore[no-untyped-call]
        for engine_id in engine_ids:
            await self.eio.send_packet(engine_id, packet)

    def _engineio_server_class(self) -> type[Engine]:
        return Engine

    async def _handle_eio_disconnect(self, eio_sid: str, reason: str) -> None:  # type: ignore[override]
        try:
            await super()._handle_eio_disconnect(eio_sid, reason)  # type: ignore[no-untyped-call]
        finally:
            self.eio.ended(eio_sid)
