"""What the client of a Socket.IO Computer was asked in one office and has not acknowledged yet.

A client has one connection, and while it switches it may be served in two offices: each office ends its own questions.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson

from smcp_bus import exact_json
from smcp_bus.dispatch import Call
from smcp_gateway.sockets.packet import Frame, request_frame
from smcp_gateway.sockets.session import Session
from smcp_proto.errors import GONE, Internal, SmcpError, TooLarge, Unavailable
from smcp_proto.tool_results import with_meta

LARGE_BYTES: Final = 64 * 1024
"""From this size on a request waits until the client has read what was sent before."""
_MCP_META: Final = b'"_meta"'
_TRIES: Final = 32
"""Underscores that are looked at one by one. To find one byte costs a tenth of what it costs to find several, and most
answers have few of it."""

Send = Callable[[Session, Frame], bool]
"""Write to a client without waiting; False: it is gone."""
Room = Callable[[Session], Coroutine[Any, Any, None] | None]
"""None where a large message may be sent to a client now, or it is gone; else what returns when that is so."""
Answered = Callable[[bytes | SmcpError], None]
"""Given the acknowledgement's JSON object, or why there is none."""


class PendingAcks:
    """Args:
    max_body: bytes that an answer may have on the bus.
    """

    def __init__(self, session: Session, send: Send, room: Room, *, max_body: int) -> None:
        self._session = session
        self._send = send
        self._room = room
        self._max_body = max_body
        self._waiting: dict[int, Callable[[SmcpError], None]] = {}
        self.ended = False

    def end(self) -> None:
        """The client is no member any more: nothing will be answered. Idempotent."""
        self.ended = True
        for fail in list(self._waiting.values()):
            fail(_gone())

    def ask(self, call: Call, answered: Answered) -> Callable[[], None]:
        """Emit the request, and have `answered` called once: with its acknowledgement, or why none comes.

        Returns:
            Stops waiting for it. Idempotent.

        Raises:
            TooLarge: the request is larger than the client takes; nothing was sent.
        """
        session = self._session
        body = exact_json.written(call.payload)
        number = session.asks.enter(lambda argument: end(_checked(argument, self._max_body)))
        frame = request_frame(number, call.row.event, body)
        if frame.size >= session.max_message:
            session.asks.leave(number)
            raise TooLarge(
                "the request is larger than this Computer takes in one message",
                details={"limit": session.max_message, "size": len(body)},
            )
        sending: asyncio.Task[None] | None = None

        def withdraw() -> None:
            if self._waiting.pop(number, None) is not None:
                session.asks.leave(number)
                session.answered()
                if sending is not None and sending is not asyncio.current_task():
                    sending.cancel()

        def end(outcome: bytes | SmcpError) -> None:
            withdraw()
            answered(outcome)

        def send() -> None:
            if self.ended or not self._send(session, frame):
                end(_gone())

        async def send_after(room: Coroutine[Any, Any, None]) -> None:
            await room
            send()

        self._waiting[number] = end
        if frame.size >= LARGE_BYTES and (room := self._room(session)) is not None:
            sending = asyncio.get_running_loop().create_task(send_after(room))
        else:
            send()
        return withdraw


def tool_result(answer: bytes) -> bytes:
    """An answer to a call of a tool, with its result-level metadata under the name that they have on our wire: a
    Computer may pass on what an MCP server gave as it is. All else stays as it stands there."""
    if not _names_mcp_meta(answer):
        return answer
    try:
        result = exact_json.read(answer)
        return exact_json.written(with_meta(result, ours=True)) if "_meta" in result else answer
    except (orjson.JSONDecodeError, RecursionError):
        return answer  # the gateway of the Agent refuses it, or mends it


def _checked(argument: bytes | None, limit: int) -> bytes | SmcpError:
    """The acknowledgement, if it can be a JSON object: the gateway of the Agent reads all of it, and refuses there
    what is not JSON. An error of the Computer is an object like any other and goes on unchanged."""
    if argument == b"":
        return Internal("the Computer answered nothing, no JSON object: it may not know this request")
    if argument is None or not _is_braced(argument):
        return Internal("the Computer's answer is not a JSON object")
    if len(argument) > limit:
        return TooLarge("the result is too large", details={"size": len(argument), "limit": limit})
    return argument


def _gone() -> Unavailable:
    return Unavailable("the Computer is gone", details={"may_have_run": True, GONE: True})


def _names_mcp_meta(answer: bytes) -> bool:
    """Whether `_meta` stands there in quotes, at any level."""
    at = 0
    for _ in range(_TRIES):
        at = answer.find(b"_", at) + 1
        if at == 0:
            return False
        if answer.startswith(_MCP_META, max(at - 2, 0)):
            return True
    return _MCP_META in answer


def _is_braced(text: bytes) -> bool:
    if text[:1] == b"{" and text[-1:] == b"}":
        return True
    text = text.strip()
    return text[:1] == b"{" and text[-1:] == b"}"
