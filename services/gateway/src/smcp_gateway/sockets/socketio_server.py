"""The Socket.IO face: a thin transport in front of the dispatcher.

It knows sessions and packets, and nothing of what an event means: the catalog's row says which size
and which shape of acknowledgement. Every event that asks for an acknowledgement gets one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from aiohttp import WSCloseCode, web
from socketio.exceptions import ConnectionRefusedError  # noqa: A004 -- python-socketio's own

from smcp_bus.dispatch import Answer, Dispatcher, failed
from smcp_gateway.auth.guard import Authority, Guard
from smcp_gateway.sockets.engine import Server
from smcp_gateway.sockets.packet import AUTH_BYTES, OVERSIZED, Frame, Inbound, ack_argument, event_frame
from smcp_gateway.sockets.reply_room import ReplyRoom, ReplyShare
from smcp_gateway.sockets.session import DEFAULT_MAX_MESSAGE, Session, Sessions
from smcp_proto import catalog
from smcp_proto.catalog import CATALOG, Row, SizeClass, upstream
from smcp_proto.errors import NOTHING_BEGUN, Malformed, RateLimited, SmcpError, TooLarge, Unavailable

SMALL_BYTES: Final = 64 * 1024
"""What a request of `SizeClass.SMALL` may have."""
LARGE_REPLY: Final = 64 * 1024
"""Bytes from which a reply waits until the client has read what was sent before."""
HEADROOM: Final = 64 * 1024
"""What a message may have above the limit of a payload, so that 413 can be said."""
WAITING_BYTES: Final = 8 * 1024 * 1024
"""What may wait for a client beside one largest message; a client that leaves more unread is cut off."""
FETCHED: Final = 2
"""Large replies in parts, each as large as may be, that are on their way to one client's outbox at a time: one comes
while the other waits. More stay with their Computers."""
UNASKED: Final = 4
"""Large replies in one message that wait for one client's outbox, in the same measure; above it 503."""
JOIN: Final = "server:join_office"
CALLED: Final = "client:"
"""Events that run free; everything else of one client happens in the order in which it came."""
SAID_AS: Final[Mapping[str, str]] = {
    up.event: row.event for row in CATALOG.values() if (up := upstream(row)) is not None
}
"""What native Computers tell the registry, and what a client says in its place."""
EXPIRY_S: Final = 1.0
"""Between two looks for sessions that are over; one outlives its token by no more."""
VERSION_PARAMETER: Final = "a2c_version"
MAX_IN_FLIGHT: Final = 4096
"""Events of one client that may be unanswered at a time; above it 429."""
IN_FLIGHT: Final = 2
"""What they may have together, in the measure of the largest; above it 429, but for one alone."""

_log: Final = logging.getLogger("smcp_gateway.sockets.socketio_server")

KeepPlace = Callable[[Session], Awaitable[None]]
Gone = Callable[[Session, bool], None]
"""Told of a session that has ended, and whether its client said so (and did not just break off)."""


class SocketIoServer:
    """Args:
    dispatcher: what is behind it answers every event.
    gone: must not block.
    max_payload: bytes that a request or reply may have.
    ping_s: seconds between two pings; a client that hears nothing for twice as long takes the gateway for gone.
    guard: says who a client is, or refuses it; None: nobody is asked.
    """

    def __init__(
        self,
        sessions: Sessions,
        dispatcher: Dispatcher,
        gone: Gone,
        *,
        max_payload: int,
        ping_s: float,
        guard: Guard | None = None,
    ) -> None:
        self._sessions = sessions
        self._dispatcher = dispatcher
        self._gone = gone
        self._max_payload = max_payload
        self._draining = False
        self._guard = guard
        self._server = Server(
            self._on_connect,
            self._on_disconnect,
            self._on_event,
            self._on_ack,
            max_message=max_payload + HEADROOM,
            outbox_limit=max_payload + WAITING_BYTES,
            ping_s=ping_s,
            authenticated=guard is not None,
        )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to `/socket.io/`."""
        if self._draining and "sid" not in request.query:
            refusal = Unavailable("the gateway is stopping; connect to another one")
            return web.json_response(refusal.body().model_dump(), status=503, headers={"Retry-After": "1"})
        return await self._server.answer(request)

    async def sweep(self) -> None:
        """Close clients that do not answer pings, until cancelled."""
        await self._server.eio.sweep()

    async def end_expired(self, authority: Authority, keep_place: KeepPlace) -> None:
        """End sessions whose token has expired or whose key was removed, and connections of clients that do not say
        who they are; until cancelled.

        Args:
            keep_place: keeps the place of a member that may come back with a new token; takes some seconds at most.
        """
        while True:
            await asyncio.sleep(EXPIRY_S)
            await authority.refresh()
            async with asyncio.TaskGroup() as ending:
                for session in self._sessions:
                    principal = session.principal
                    if principal is not None and (why := authority.ended(principal)) is not None:
                        keep = keep_place if authority.may_return(principal) else None
                        ending.create_task(self._end(session, why, keep))
            await self._server.close_unauthenticated()

    async def _end(self, session: Session, why: str, keep_place: KeepPlace | None) -> None:
        if keep_place is not None:
            session.leaving = True  # nothing new is begun for it
            await keep_place(session)
        await self.hang_up(session, why)

    async def tell(self, sessions: Iterable[Session], event: str, body: bytes) -> None:
        """Emit a notification to each of `sessions`; `body` is its JSON. Nobody is waited for."""
        self._server.send_frame([session.engine_id for session in sessions], event_frame(event, body))

    def send(self, session: Session, frame: Frame) -> bool:
        """Write to one client; nobody is waited for. False: it is gone."""
        outbox = None if session.closed else self._server.eio.outbox(session.engine_id)
        if outbox is None:
            return False
        outbox.put_nowait(frame)
        return True

    def room(self, session: Session) -> Coroutine[Any, Any, None] | None:
        """See `questions.Room`."""
        outbox = self._server.eio.outbox(session.engine_id)
        return None if outbox is None or outbox.has_room else outbox.room()

    async def hang_up(self, session: Session, why: str) -> None:
        """Close a client's connection; it comes back by itself if it wants.

        A client that is leaving and waits for nothing is told so (`NOTHING_BEGUN`): what it has sent since is not read.
        """
        _log.info("a client is told to go: %s", why, extra={"session": session.id})
        settled = session.leaving and session.in_flight == 0
        code = NOTHING_BEGUN if settled else WSCloseCode.OK
        await self._server.eio.hang_up(session.engine_id, code)

    def held_bytes(self, session: Session) -> int:
        """Of replies and notifications that are here, or may come, and that a client has not been sent yet."""
        outbox = self._server.eio.outbox(session.engine_id)
        return session.replies.bytes + (0 if outbox is None else outbox.held)

    def unsent_bytes(self, session: Session) -> int:
        """What is held for a client, and what was written that its socket has not taken yet."""
        tcp = self._server.eio.tcp.get(session.engine_id)
        return self.held_bytes(session) + (0 if tcp is None else tcp.get_write_buffer_size())

    @property
    def draining(self) -> bool:
        """Whether new clients are refused."""
        return self._draining

    def drain(self) -> None:
        """Take no new clients; those that are here go on."""
        self._draining = True

    async def _on_connect(self, sid: str, environ: dict[str, Any], auth: object) -> None:
        a2c_version, max_message, flat_errors = _greeting(environ, auth)
        principal = None
        if self._guard is not None:
            try:
                principal = await self._guard.admit(environ["aiohttp.request"], auth)
            except SmcpError as error:
                raise _refused(error) from None
        engine_id = self._server.engine_id(sid)
        replies = ReplyRoom(fetched=FETCHED * self._max_payload, unasked=UNASKED * self._max_payload)
        session = Session(sid, engine_id, max_message, flat_errors, a2c_version, principal, replies=replies)
        session.connected_at = asyncio.get_running_loop().time()
        self._sessions.add(session)

    async def _on_disconnect(self, sid: str, reason: str) -> None:
        session = self._sessions.remove(sid)
        if session is not None:
            session.closed = True
            self._gone(session, reason == self._server.reason.CLIENT_DISCONNECT)

    async def _on_event(self, sid: str, inbound: Inbound) -> bytes | None:
        session = self._sessions.get(sid)
        if session is None:
            return None
        size = len(inbound.body or b"")
        session.in_flight += 1
        session.in_flight_bytes += size
        share = ReplyShare(session.replies)
        try:
            row = catalog.lookup(inbound.event)
            answer = await self._answer(session, row, inbound, share)
            argument = _ack(session, row, answer)
            if len(argument) >= LARGE_REPLY and (outbox := self._server.eio.outbox(session.engine_id)) is not None:
                if not share.hold(len(argument)):
                    unread = Unavailable("too many large replies were not read", details={"may_have_run": True})
                    return _ack(session, row, failed(unread.body()))
                await outbox.room()
            return argument
        finally:
            share.release()
            session.in_flight -= 1
            session.in_flight_bytes -= size
            session.answered()

    def _on_ack(self, sid: str, number: int, argument: bytes | None) -> None:
        if (session := self._sessions.get(sid)) is not None:
            session.asks.acknowledged(number, argument)

    async def _answer(self, session: Session, row: Row | None, inbound: Inbound, share: ReplyShare) -> Answer:
        refusal = self._refusal(session, row, inbound)
        if refusal is not None:
            return failed(refusal.body())
        assert row is not None
        assert inbound.body is not None
        if row.event.startswith(CALLED):
            membership = session.membership
            if (membership is None or membership.ending) and session.order.locked():
                async with session.order:  # published Agents do not wait for the answer to their join or leave
                    pass
            return await self._dispatcher.dispatch(row, session.caller(), inbound.body, admit=share.admit)
        async with session.order:
            return await self._dispatcher.dispatch(row, session.caller(), inbound.body)

    def _refusal(self, session: Session, row: Row | None, inbound: Inbound) -> SmcpError | None:
        if row is None:
            return Malformed(inbound.fault or "there is no such event", details={"field": ""})
        if row.event in SAID_AS:
            return Malformed(f"{row.event} is not for clients; say {SAID_AS[row.event]}", details={"field": ""})
        if inbound.body is None:
            return Malformed(inbound.fault or "the event needs one argument, an object", details={"field": ""})
        limit = SMALL_BYTES if row.size is SizeClass.SMALL else self._max_payload
        if len(inbound.body) > limit:
            return TooLarge("the request is too large", details={"limit": limit, "size": len(inbound.body)})
        if session.in_flight > MAX_IN_FLIGHT:
            return RateLimited("too many unanswered events on this connection", details={"limit": MAX_IN_FLIGHT})
        most = IN_FLIGHT * self._max_payload
        if session.in_flight_bytes > most and session.in_flight > 1:
            return RateLimited("unanswered events on this connection are too large together", details={"limit": most})
        if session.leaving and (row.event == JOIN or row.event.startswith(CALLED)):
            # by `moving` our SDK knows that it is to ask again when it has come back
            details = {"may_have_run": False, "moving": True}
            return Unavailable("this connection is about to be closed; connect again", details=details)
        return None


def _ack(session: Session, row: Row | None, answer: Answer) -> bytes:
    return ack_argument(row, answer, session.max_message, flat_errors=session.flat_errors)


def _greeting(environ: dict[str, Any], auth: object) -> tuple[str | None, int, bool]:
    """What a client says when it connects: the version of its protocol, bytes of the largest message that it takes, and
    whether it reads flat errors. Refuses it where a field has the wrong type."""
    request: web.Request = environ["aiohttp.request"]
    said = {} if auth is None else auth
    if said == OVERSIZED:
        why = f"auth: is longer than {AUTH_BYTES} bytes"
        raise _refused(TooLarge(why, details={"field": "auth", "limit": AUTH_BYTES}))
    if not isinstance(said, dict):
        raise _malformed("auth", "is not a JSON object")
    max_message, flat_errors = said.get("max_message", DEFAULT_MAX_MESSAGE), said.get("flat_errors", False)
    if not isinstance(max_message, int) or isinstance(max_message, bool) or max_message <= 0:
        raise _malformed("auth.max_message", "is not a positive integer")
    if not isinstance(flat_errors, bool):
        raise _malformed("auth.flat_errors", "is not true or false")
    return request.query.get(VERSION_PARAMETER), max_message, flat_errors


def _malformed(field: str, reason: str) -> Exception:
    return _refused(Malformed(f"{field}: {reason}", details={"field": field}))


def _refused(error: SmcpError) -> Exception:
    """What makes Socket.IO refuse a client: the error's message, and as data the flat error."""
    refusal: Exception = ConnectionRefusedError(error.message, error.body().model_dump())  # type: ignore[no-untyped-call]
    return refusal
