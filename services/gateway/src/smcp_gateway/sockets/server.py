"""python-socketio, fitted to the gateway: one namespace, and events that go straight to who answers them.

Not here: what an event means. All of python-socketio's inner names that the gateway relies on are in this file.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import orjson
import socketio
from aiohttp import WSCloseCode, web
from engineio import payload as engine_payload

from smcp_gateway.auth.strangers import Strangers
from smcp_gateway.sockets.engine import Engine
from smcp_gateway.sockets.gathering import Gathering
from smcp_gateway.sockets.handshake import unknown_session
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

POLLING_PACKETS: Final = 1024
"""Packets that one polling request may carry; engine.io's own 16 loses the calls of a client that is quick."""

_log: Final = logging.getLogger("smcp_gateway.sockets.server")

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
        if sid is not None and sid not in self.eio.sockets:
            return unknown_session()
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
