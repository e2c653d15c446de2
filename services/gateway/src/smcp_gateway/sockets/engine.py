"""engine.io, fitted to the gateway: bounded outboxes, and connections that really end.

All of engine.io's inner names that the gateway relies on are in this file and in `connection.py`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import engineio
from aiohttp import StreamReader, web
from engineio import packet as engine_packet
from engineio.async_drivers.aiohttp import translate_request
from engineio.async_socket import AsyncSocket
from engineio.exceptions import EngineIOError

from smcp_gateway.sockets.connection import LINGER_S, Connection
from smcp_gateway.sockets.outbox import Outbox
from smcp_gateway.sockets.progress import Progress

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
