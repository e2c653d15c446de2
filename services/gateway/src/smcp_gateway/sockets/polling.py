"""Reads and writes engine.io's protocol in the HTTP requests of a client that polls.

A body is read as it comes, packet by packet, as messages of a WebSocket are: nothing of it is decoded or parsed here.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError, web
from engineio.exceptions import QueueEmpty

from smcp_gateway.sockets.packet import Assembly, Frame
from smcp_gateway.sockets.websocket import VERY_LARGE, noop

if TYPE_CHECKING:
    from smcp_gateway.sockets.engine import Engine

MOST_PACKETS: Final = 1024
"""Packets that one request may carry: a client that is quick sends hundreds. Each costs time, however short it is."""
_SEPARATOR: Final = b"\x1e"


async def send_polled(engine: "Engine", socket: Any, request: web.Request) -> web.Response:
    """Answer with the packets that wait for the client, once there is one."""
    try:
        packets = [noop()] if socket.upgrading else await socket.poll()
    except QueueEmpty:
        await engine.close_socket(socket, engine.reason.TRANSPORT_ERROR)
        packets = None
    if socket.closed:
        engine.sockets.pop(socket.sid, None)
    if packets is None:
        return _answer(request, b"the session has ended", status=400)
    parts: list[bytes] = []
    for packet in packets:
        parts += (_SEPARATOR, *(packet.parts if isinstance(packet, Frame) else (packet.encode(b64=True).encode(),)))
    return _answer(request, b"".join(parts[1:]))


async def receive_polled(engine: "Engine", socket: Any, request: web.Request) -> web.Response:
    """Handle the packets of the request's body. What is no such body ends the session."""
    size = packets = 0
    whole = Assembly(engine.max_event)
    try:
        async for chunk in request.content.iter_any():
            size += len(chunk)
            packets += chunk.count(_SEPARATOR)
            if size > engine.max_http_buffer_size or packets >= MOST_PACKETS:
                await engine.close_socket(socket, engine.reason.TRANSPORT_ERROR)
                why = f"at most {engine.max_http_buffer_size} bytes and {MOST_PACKETS} packets"
                return _answer(request, why.encode(), status=413)
            *pieces, last = chunk.split(_SEPARATOR)
            for piece in pieces:
                whole.add(piece)
                await _handle(engine, socket, whole)
                whole = Assembly(engine.max_event)
            whole.add(last)
        if request.content_length in (None, size):
            await _handle(engine, socket, whole)
            return _answer(request, b"OK")
    except (ClientError, ConnectionError):
        pass  # it hung up in the middle of the request
    await engine.close_socket(socket, engine.reason.TRANSPORT_ERROR)
    return _answer(request, b"", status=400)


async def _handle(engine: "Engine", socket: Any, whole: Assembly) -> None:
    if not socket.closed:
        text = whole.text()
        if len(text) >= VERY_LARGE:
            await asyncio.sleep(0)
        if (work := engine.received(socket, text, whole.size)) is not None:
            await work


def _answer(request: web.Request, body: bytes, status: int = 200) -> web.Response:
    answer = web.Response(body=body, status=status, content_type="text/plain", charset="utf-8")
    if (origin := request.headers.get("Origin")) is not None:  # the edge has let it through
        answer.headers.update({"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"})
    return answer
