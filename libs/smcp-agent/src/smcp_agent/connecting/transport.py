"""The HTTP session of a connection, beneath python-socketio; its JSON; and why it could not be opened.

The session notes what python-engineio does not keep: the promises of the open packet, the socket, and when bytes came;
it uses only documented names of aiohttp. The JSON is set on the packet class of one client. Unlike the default, it
refuses NaN and lone surrogates (the server could not read such a packet), and packets that are too large.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from socketio.packet import Packet

from smcp_agent.errors import Malformed, TooLarge
from smcp_proto.catalog import ENVELOPE_BYTES, HEADROOM
from smcp_proto.validation import HALF

NO_GATEWAY: Final = "is not an A2C-SMCP gateway"
NEVER_MS: Final = 10 * 365 * 24 * 3_600_000
"""Ten years: a time-out of python-engineio that has to be a number, and is not to be used."""
LARGE: Final = 64 * 1024
"""Characters of a message; reading fewer takes less than 1 ms."""


class ReadTurns:
    """Has the connections of a process read large messages one at a time, together `per_s` characters a second. Each
    has one that waits, so a peer that sends many delays the others by one at most; small messages wait for none."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._reading = asyncio.Lock()

    async def wait(self, length: int) -> None:
        if length > LARGE:
            await self._reading.acquire()
            asyncio.get_running_loop().call_later(length / self._per_s, self._reading.release)


class HttpSession:
    """Attributes:
    max_payload: bytes of the largest message that the server accepts; None: not known yet.
    heartbeat_s: the server promised to send something at least so often; 0: not known yet.
    socket: the WebSocket, once there is one.
    heard_at: when bytes came over it last (loop time).
    refusal: the JSON that refused the WebSocket.
    """

    def __init__(self, turns: ReadTurns | None = None) -> None:
        self.max_payload: int | None = None
        self.heartbeat_s = 0.0
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self.heard_at = 0.0
        self.refusal: object = None
        self._transport: asyncio.Transport | None = None
        noted = self

        class WebSocket(aiohttp.ClientWebSocketResponse):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                noted.socket = self

            async def receive(self, timeout: float | None = None) -> Any:
                message = await super().receive(timeout)
                if turns is not None and isinstance(message.data, str):
                    await turns.wait(len(message.data))  # nothing is read from the socket meanwhile
                opened = noted.hear(message.data)
                if opened is None:
                    return message
                # python-engineio waits for whole messages, and a large one may take longer: we wait for bytes instead
                return message._replace(data="0" + json.dumps({**opened, "pingTimeout": NEVER_MS}))

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._on_answer)
        self.session = aiohttp.ClientSession(ws_response_class=WebSocket, trace_configs=[trace])

    async def close(self) -> None:
        """End it at once, with the WebSocket that python-engineio may have left open: aiohttp warns of it."""
        if self._transport is not None:
            self._transport.abort()
        if self.socket is not None:
            await self.socket.close()
        await self.session.close()

    async def _on_answer(self, _: object, context: object, params: aiohttp.TraceRequestEndParams) -> None:
        response, connection = params.response, params.response.connection
        if response.status == HTTPStatus.SWITCHING_PROTOCOLS and connection is not None:
            self._transport = connection.transport
            if self._transport is not None and isinstance(protocol := self._transport.get_protocol(), asyncio.Protocol):
                self._on_bytes()
                self._transport.set_protocol(_Listening(protocol, self._on_bytes, self._on_end))
        elif response.status < HTTPStatus.INTERNAL_SERVER_ERROR and (response.content_length or HEADROOM) < HEADROOM:
            with suppress(ValueError, RecursionError, aiohttp.ClientError):
                self.refusal = await response.json()

    def _on_bytes(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()

    def _on_end(self) -> None:
        self._transport = None  # asyncio fails to abort one that wrote its last bytes after `close`

    def hear(self, message: object) -> dict[str, Any] | None:
        """Note what the first open packet promises, and return it; None: this is another message."""
        if self.heartbeat_s or (opened := open_packet(message)) is None:
            return None
        self.heartbeat_s = (opened["pingInterval"] + opened["pingTimeout"]) / 1000
        limit = opened.get("maxPayload")
        if type(limit) is int and limit > 0:
            self.max_payload = limit
        return opened


def open_packet(message: object) -> dict[str, Any] | None:
    if not isinstance(message, str) or not message.startswith("0{"):
        return None
    try:
        opened: dict[str, Any] = json.loads(message[1:])
    except ValueError:
        return None
    return opened if all(type(opened.get(field)) is int for field in ("pingInterval", "pingTimeout")) else None


class _Listening(asyncio.Protocol):
    def __init__(self, protocol: asyncio.Protocol, on_bytes: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._on_bytes = on_bytes
        self._on_end = on_end
        self._protocol = protocol
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        self._on_bytes()
        self._protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end()
        self._protocol.connection_lost(exc)


class JsonText(str):
    """JSON already: it goes into a packet as it is."""

    __slots__ = ()


class WireJson:
    """What `socketio.packet.Packet` takes as its `json`. `max_bytes`: until the server has said what it takes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._named_limit = max_bytes

    def limit(self, max_payload: int) -> None:
        """From now on send at most `max_payload` bytes a message: the server disconnects a client that sends more."""
        self._max_bytes = max_payload - ENVELOPE_BYTES
        self._named_limit = max_payload - HEADROOM if max_payload > HEADROOM else self._max_bytes

    def dumps(self, value: Any, **options: Any) -> str:
        """The JSON of a packet. Raises TooLarge; Malformed: `details.field` names what JSON cannot say."""
        match value:
            case [JsonText() as done]:
                text = f"[{done}]"
            case _:
                text = _dumped(value, options)
        size = len(text) if text.isascii() else len(text.encode())
        if size > self._max_bytes:
            raise TooLarge(
                f"the request has {size} bytes, the limit is {self._named_limit}",
                details={"limit": self._named_limit, "size": size},
            )
        return text

    def loads(self, text: str, **options: Any) -> Any:
        return json.loads(text, **options)


def _dumped(value: Any, options: dict[str, Any]) -> str:
    try:
        return _strict(value, **options)
    except (TypeError, ValueError, RecursionError) as error:
        why = HALF if isinstance(error, UnicodeEncodeError) else str(error)
        field = ""
        with suppress(RecursionError):  # what is nested too deeply, or holds itself
            field = ".".join(_fault(value[-1] if isinstance(value, list) and len(value) > 1 else value))
        message = f"{field}: {why}" if field else f"cannot be encoded as JSON: {why}"
        raise Malformed(message, details={"field": field, "reason": why}) from error


def _strict(value: Any, **options: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    if not text.isascii():
        text.encode()  # a lone surrogate fails here
    return text


def _fault(value: Any) -> list[str]:
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        try:
            _strict(part)
        except (TypeError, ValueError):
            return [str(key), *_fault(part)]
    return []


def packet_class(wire_json: WireJson) -> type[Packet]:
    """A Socket.IO packet with this JSON, in which bytes are refused instead of attached."""
    return type("WirePacket", (Packet,), {"json": wire_json, "uses_binary_events": False})


def reason(error: BaseException) -> str:
    """Why the network failed, from the causes of python-socketio's "Connection error"."""
    cause: BaseException | None = error
    while cause is not None:
        match cause:
            case aiohttp.WSServerHandshakeError(status=status):
                is_gateway = status >= HTTPStatus.BAD_REQUEST and status not in (404, 405)
                return f"HTTP {status}" if is_gateway else f"what answers there (HTTP {status}) {NO_GATEWAY}"
            case aiohttp.ClientSSLError():  # its errno is a number of OpenSSL's
                return str(cause.os_error)
            case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))) if number > 0:
                return os.strerror(number)
        error, cause = cause, cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
