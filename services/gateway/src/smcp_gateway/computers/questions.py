"""What the client of a Socket.IO Computer is asked in one office, each question with a bound.

A client has one connection, and while it switches it may be served in two offices: each office ends its own questions.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from smcp_bus import exact_json
from smcp_bus.dispatch import Call
from smcp_gateway.sockets.packet import Frame, request_frame
from smcp_gateway.sockets.session import Fate, Outcome, Session, settle
from smcp_proto.errors import TooLarge

LARGE_BYTES: Final = 64 * 1024
"""From this size on a request waits until the client has read what was sent before."""

Send = Callable[[Session, Frame], bool]
"""Write to a client without waiting; False: it is gone."""
Room = Callable[[Session], Coroutine[Any, Any, None] | None]
"""None where a large message may be sent to a client now, or it is gone; else what returns when that is so."""


class Questions:
    """Questions to one client in one office."""

    def __init__(self, session: Session, send: Send, room: Room) -> None:
        self._session = session
        self._send = send
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[Outcome]] = set()
        self.ended = False

    def end(self) -> None:
        """Nothing will be answered any more. Idempotent."""
        self.ended = True
        for answer in list(self._waiting):
            settle(answer, Fate.GONE)

    async def ask(self, call: Call, limit: float, answer: "asyncio.Future[Outcome]") -> Outcome:
        """Emit the event and wait for its acknowledgement, at most `limit` seconds.

        Raises:
            TooLarge: the request is larger than the client takes; nothing was sent.
        """
        session = self._session
        body = call.raw if call.raw is not None else exact_json.written(call.payload)
        ends = self._loop.time() + limit
        number = session.asks.enter(answer)
        self._waiting.add(answer)
        timer = self._loop.call_at(ends, settle, answer, Fate.EXPIRED)
        try:
            frame = request_frame(number, call.row.event, body)
            if frame.size >= session.max_message:
                raise TooLarge(
                    "the request is larger than this Computer takes in one message",
                    details={"limit": session.max_message, "size": len(body)},
                )
            if frame.size >= LARGE_BYTES and (room := self._room(session)) is not None:
                await self._until_room(room, answer)
            if not answer.done() and (self.ended or not self._send(session, frame)):
                settle(answer, Fate.GONE)
            return await answer
        finally:
            timer.cancel()
            self._waiting.discard(answer)
            session.asks.leave(number)
            session.answered()

    async def _until_room(self, room: Coroutine[Any, Any, None], answer: "asyncio.Future[Outcome]") -> None:
        """Wait for room in the client's outbox, or until the question is settled."""
        waiting = self._loop.create_task(room)
        try:
            await asyncio.wait((waiting, answer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
