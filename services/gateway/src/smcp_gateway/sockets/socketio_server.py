"""Serves Socket.IO clients: python-socketio connects and disconnects them, the dispatcher answers their events.

Events and acknowledgements are cut out of their packets and do not pass python-socketio. Every event that asks for an
acknowledgement gets one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, cast

import orjson
import socketio
from aiohttp import WSCloseCode, web
from pydantic import BaseModel
from socketio.exceptions import ConnectionRefusedError  # noqa: A004 -- python-socketio's own

from smcp_auth.authenticator import Authenticator
from smcp_auth.quotas import Quotas, Ticket, Turns
from smcp_bus.dispatch import JOIN, Answer, Call, Dispatcher, failed
from smcp_bus.limits import Buckets
from smcp_bus.tool_progress import MAX_NOTE_BYTES
from smcp_gateway.audit import Audit
from smcp_gateway.auth import CONNECT_S, UnauthenticatedClients, admit, refusal_response, source_of
from smcp_gateway.settings import GatewaySettings
from smcp_gateway.sockets import packet
from smcp_gateway.sockets.engine import Engine
from smcp_gateway.sockets.packet import LARGE, ClientEvent, Frame, ack_frame
from smcp_gateway.sockets.session import MAX_REPLIES, PROGRESS_EVENTS, Session, Sessions, client_options
from smcp_proto import catalog, errors
from smcp_proto.catalog import HEADROOM, NAMESPACE, Row
from smcp_proto.errors import SmcpError, Unavailable
from smcp_proto.schemas.tools import TOOL_PROGRESS
from smcp_service.http_limits import of_member

WAITING_BYTES: Final = 8 * 1024 * 1024
"""Unread bytes that a client may have beside one largest message; above that the client is cut off."""
REQUEST_LIMIT_DIVISOR: Final = 4
"""A request may have a quarter of what an answer may have (ADR 0044): it is parsed and written anew, in one go each."""
MIN_REQUEST_LIMIT: Final = 1024 * 1024
"""Bytes that a request may have, where a payload may."""
CALLED: Final = "client:"
"""Events that run free; everything else of one client happens in the order in which it came."""
REFUSED_PAUSE_S: Final = 0.01
"""For so long a client is not read after a refusal for a quota: refusals cost, too."""
LONGEST_PAUSE_S: Final = 3.0
"""The same where its large messages are above the quota of bytes: less time than it has to answer a ping."""
UNKNOWN: Final = (
    "sid: no such session at this replica: it has ended, or the proxy is not sticky by client address, which polling "
    "needs (WebSocket alone does not)"
)
LONGEST_PING_S: Final = 4.0
"""Between two pings. A half-open client is found within 10 s."""
PING_SHARE: Final = 0.35
"""The same as a share of a lease: clients of a gateway that hangs notice it before its lease expires."""
UNAUTHENTICATED_POST: Final = 48 * 1024
"""The largest polling body before authentication: with its headers it stays below the limit of `http_limits`."""
UPLOAD_S: Final = 60.0
"""How long the upload of one polling request may take, its pauses included; before authentication `CONNECT_S`."""

_log: Final = logging.getLogger("smcp_gateway.sockets.socketio_server")
Work = Coroutine[Any, Any, None]


class SocketIoServer:
    """`dispatcher` and `gone` are set before the first client is answered. `authenticator` None: it is off."""

    def __init__(
        self,
        sessions: Sessions,
        settings: GatewaySettings,
        quotas: Quotas,
        authenticator: Authenticator | None,
        audit: Audit,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sessions = sessions
        self._quotas = quotas
        self._turns = Turns()
        self._progress = Buckets(PROGRESS_EVENTS, self._loop.time)
        self.dispatcher: Dispatcher
        self.gone: Callable[..., None]
        """Called with a session that has ended; `goodbye`: its client said so."""
        self._max_payload = max_payload = settings.max_payload
        self._max_values = settings.max_values
        self._max_request = min(max_payload, max(MIN_REQUEST_LIMIT, max_payload // REQUEST_LIMIT_DIVISOR))
        self._authenticator = authenticator
        self._source = partial(source_of, trusted=settings.proxies)
        self._audit = audit
        self._unauthenticated = UnauthenticatedClients(
            settings.unauthenticated_per_address,
            lambda engine_id: self.spawn(self.engine.hang_up(engine_id, WSCloseCode.POLICY_VIOLATION)),
        )
        self.draining = False
        """New clients are refused; those that are here go on."""
        logger = logging.getLogger("smcp_gateway.socketio")
        logger.setLevel(logging.ERROR)
        untyped: Any = socketio.AsyncServer
        self._sio = untyped(namespaces=[NAMESPACE], logger=logger, engineio_logger=logger)
        self._sio.on("connect", self._on_connect, namespace=NAMESPACE)
        self._sio.on("disconnect", self._on_disconnect, namespace=NAMESPACE)
        handlers = self._sio.eio.handlers
        self._opened, self._ended, self._sio_packet = (handlers[name] for name in ("connect", "disconnect", "message"))
        self.engine = self._sio.eio = Engine(
            logger,
            max_message=max_payload + HEADROOM,
            max_event=self._max_request + HEADROOM,
            send_queue_limit=max_payload + WAITING_BYTES,
            ping_s=min(LONGEST_PING_S, PING_SHARE * settings.lease_s),
        )
        self.engine.on("connect", self._on_open)  # type: ignore[no-untyped-call]
        self.engine.on("disconnect", self._on_end)  # type: ignore[no-untyped-call]
        self.engine.on_message = self._on_message
        self.sweep, self.spawn = self.engine.sweep, self.engine.spawn

    async def answer(self, request: web.Request) -> web.StreamResponse:
        sid = request.query.get("sid")
        if sid is None:
            if self.draining:
                return refusal_response(Unavailable("the gateway is stopping; connect to another one"))
            return self._unauthenticated.refusal(request, self._source(request)) or await self.engine.handle_request(
                request
            )
        send_queue = self.engine.send_queue(sid)
        if send_queue is None:
            return refusal_response(errors.Malformed(UNKNOWN, details={"field": "sid"}))  # engine.io would raise
        if send_queue.tenant:
            of_member(request)
        elif (size := request.content_length or 0) > UNAUTHENTICATED_POST:
            details = {"limit": UNAUTHENTICATED_POST, "size": size}
            return refusal_response(errors.TooLarge("connect to the namespace first", details=details))
        if request.method != "POST":
            return await self.engine.handle_request(request)
        try:
            async with asyncio.timeout(UPLOAD_S if send_queue.tenant else CONNECT_S):
                return await self.engine.handle_request(request)
        except TimeoutError:
            raise web.HTTPRequestTimeout from None

    def send(self, session: Session, frame: Frame) -> bool:
        """Write to one client, without waiting for delivery. False: it is gone."""
        if session.closed:
            return False
        session.send_queue.put_nowait(frame)
        return True

    async def hang_up(self, session: Session, why: str) -> None:
        """Close a client's connection; it comes back by itself if it wants. One that is leaving and waits for nothing
        gets `NOTHING_BEGUN`: later packets are not read."""
        _log.info("a client is disconnected: %s", why, extra={"session": session.id})
        settled = session.leaving and session.in_flight == 0
        await self.engine.hang_up(session.engine_id, errors.NOTHING_BEGUN if settled else WSCloseCode.OK)

    async def _on_open(self, engine_id: str, environ: dict[str, Any]) -> None:
        self._unauthenticated.opened(engine_id, self._source(environ["aiohttp.request"]))
        await self._opened(engine_id, environ)

    async def _on_end(self, engine_id: str, reason: str) -> None:
        try:
            await self._ended(engine_id, reason)
        finally:
            self._unauthenticated.ended(engine_id)
            self.engine.ended(engine_id)

    async def _on_connect(self, sid: str, environ: dict[str, Any], auth: object) -> None:
        request: web.Request = environ["aiohttp.request"]
        engine_id = self._sio.manager.eio_sid_from_sid(sid, NAMESPACE)
        try:
            options = client_options(request, auth, self._max_values).model_dump()
            principal = None if self._authenticator is None else await admit(self._authenticator, request, auth)
            send_queue = self.engine.send_queue(engine_id)
            if send_queue is None:
                raise Unavailable("the connection ended while its token was checked")
            session = Session(sid, engine_id, **options, principal=principal, address=self._source(request))
            session.send_queue = send_queue
            session.max_reply_bytes = MAX_REPLIES * self._max_payload
            self._quotas.connected(session)
        except SmcpError as error:
            self._audit.not_connected(self._source(request), error)
            refusal = error.message, error.body().model_dump()  # as data the flat error
            raise ConnectionRefusedError(*refusal) from None  # type: ignore[no-untyped-call]
        session.connected_at = self._loop.time()
        self._sessions.add(session)
        self._unauthenticated.ended(engine_id)
        send_queue.let_in(engine_id if principal is None else principal.identity)

    async def _on_disconnect(self, sid: str, reason: str) -> None:
        session = self._sessions.remove(sid)
        if session is not None:
            self._quotas.disconnected(session)
            session.closed = True
            del session.send_queue  # it may hold much, and the session stays until it has left its office
            self.gone(session, goodbye=reason == self.engine.reason.CLIENT_DISCONNECT)

    def _on_message(self, engine_id: str, text: bytes | bytearray, size: int) -> Work | None:
        """Returns what is done before the next packet is read."""
        session = self._sessions.of_connection(engine_id)
        if session is not None and (session.was_refused or size >= LARGE):
            late_s = self._quotas.arrived(session, size) if size >= LARGE else 0.0
            if session.was_refused:
                late_s, session.was_refused = max(late_s, REFUSED_PAUSE_S), False
            if (late_s := min(late_s, LONGEST_PAUSE_S)) > 0:
                return self._later(session, asyncio.sleep(late_s), partial(self._read, session, engine_id, text, size))
        return self._read(session, engine_id, text, size)

    async def _later(self, session: Session, turn: Awaitable[None], begin: Callable[[], Work | None]) -> None:
        with session.waiting():
            await turn
            if not session.closed and (work := begin()) is not None:
                await work

    def _read(self, session: Session | None, engine_id: str, text: bytes | bytearray, size: int) -> Work | None:
        match packet.read_packet(text, 1, size):
            case ClientEvent() as event:
                if session is not None and not (_is_progress(session, event) and self._is_surplus(session, event)):
                    office = session.id if session.seat is None else session.seat[0]
                    subject = "" if session.principal is None else session.principal.identity
                    turn = self._turns.take(office, subject)
                    if turn is not None:
                        return self._later(session, turn, partial(self._begin, session, event))
                    self._begin(session, event)
            case packet.ClientAck(number, argument):
                if session is not None and (acknowledged := session.asks.get(number)) is not None:
                    acknowledged(argument)
            case packet.ClientConnect(namespace, auth):
                return self._connect(engine_id, f"0{namespace},{'' if auth is None else orjson.dumps(auth).decode()}")
            case packet.ClientDisconnect():
                if session is not None:
                    return self._leave_namespace(session)
        return None

    async def _connect(self, engine_id: str, said: str) -> None:
        """One that is refused is disconnected: each try costs, and it is let in by another connection."""
        if engine_id in self._sio.environ:  # else it ended before its turn
            await self._sio_packet(engine_id, said)
            if self._sessions.of_connection(engine_id) is None:
                await self.engine.hang_up(engine_id, WSCloseCode.POLICY_VIOLATION)

    async def _leave_namespace(self, session: Session) -> None:
        await self._sio_packet(session.engine_id, f"1{NAMESPACE},")
        if self.engine.send_queue(session.engine_id) is not None:
            self._unauthenticated.opened(session.engine_id, session.address)

    def _begin(self, session: Session, event: ClientEvent) -> None:
        session.in_flight += 1
        session.in_flight_bytes += len(event.body or b"")
        row = catalog.lookup(event.name)
        refusal = event.refusal(row, self._max_request)  # here, since events that come with it count for themselves
        if refusal is None and row is not None:
            begins = row.event == JOIN or row.event.startswith(CALLED)
            refusal = session.refusal(self._max_payload, begins=begins)
        work = self._on_event(session, row, event, refusal)
        self.engine.spawn(work, partial(self._event_ended, session, event))

    def _is_surplus(self, session: Session, event: ClientEvent) -> bool:
        """Whether there are too many progress events: then it is dropped."""
        if self._progress.take(session.id) <= 0:
            return False
        if event.id is not None:
            self.send(session, ack_frame(event.id, packet.NULL))
        return True

    def _event_ended(self, session: Session, event: ClientEvent, task: asyncio.Task[None]) -> None:
        self.engine.tasks.discard(task)
        session.in_flight -= 1
        session.in_flight_bytes -= len(event.body or b"")

    async def _on_event(self, session: Session, row: Row | None, event: ClientEvent, refusal: SmcpError | None) -> None:
        try:
            answer = await self._answer(session, row, event, refusal)
            argument = packet.ack_argument(row, answer, flat_errors=session.flat_errors)
            if len(argument) >= LARGE and not session.closed:
                with session.holding(len(argument)):
                    await session.send_queue.wait_writable()
        except asyncio.CancelledError:
            return  # its client is gone
        except Exception:  # noqa: BLE001 -- the outermost edge: it is logged, and the client gets its answer
            _log.exception("an event could not be answered")
            internal = failed(errors.Internal("internal error").body())
            argument = packet.ack_argument(row, internal, flat_errors=session.flat_errors)
        if event.id is not None:
            frame = ack_frame(event.id, argument)
            if self._audit.trail.sink is None:
                self.send(session, frame)
            else:  # after its audit record, which is sent in this round of the loop
                self._loop.call_soon(self.send, session, frame)

    async def _answer(self, session: Session, row: Row | None, event: ClientEvent, refusal: SmcpError | None) -> Answer:
        answer, ticket = None, cast("Ticket", ())
        if refusal is None and not _is_progress(session, event):
            try:
                ticket = self._quotas.begin(session, event.size if event.size < LARGE else 0)
            except errors.RateLimited as error:
                refusal = error
        dispatch = self.dispatcher.dispatch
        try:
            if row is None or refusal is not None:
                row, size = row or Row(event.name, BaseModel), event.size
                answer = await dispatch(row, session.caller(), event.body, refusal=refusal, size=size)
            elif row.event.startswith(CALLED):
                membership = session.membership
                if (membership is None or membership.ending) and session.order.locked():
                    async with session.order:  # published Agents do not wait for the answer to their join or leave
                        pass
                answer = await dispatch(row, session.caller(), event.body)
            else:
                async with session.order:
                    answer = await dispatch(row, session.caller(), event.body)
        finally:
            self._quotas.end(ticket, 0 if answer is None else len(answer.body))
        if answer.error == errors.ErrorCode.RATE_LIMITED:  # for a quota, of a registry, or for reads
            session.was_refused = True
        return answer

    def fit(self, call: Call, answer: Answer) -> Answer:
        """An answer as its client takes it (`smcp_bus.dispatch.Fit`)."""
        session, size = self._sessions.get(call.caller.session), len(answer.body)
        if session is None:
            return answer
        try:
            if size > packet.largest_reply(session.max_message):
                self._quotas.arrived(session, size)
                raise packet.too_large(size, session.max_message)
            if size >= LARGE:
                session.check_room(size)
            if answer.error is not None and call.row.event == TOOL_PROGRESS and call.caller.role == "computer":
                self._quotas.end(self._quotas.begin(session, 0), 0)  # malformed, it counts as other events do
        except SmcpError as error:
            return failed(error.body())
        return answer


def _is_progress(session: Session, event: ClientEvent) -> bool:
    """Whether it is progress of a call: no event for the quotas, since each call has up to ten a second."""
    return event.name == TOOL_PROGRESS and session.role == "computer" and event.size <= MAX_NOTE_BYTES
