"""Reads and writes Socket.IO packets as bytes.

What a client sends is cut, not parsed: the dispatcher parses the argument of an event. Reading never raises: an event
or acknowledgement that cannot be read keeps its id, so that it is answered.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from socketio import packet as sio

from smcp_bus import exact_json
from smcp_bus.dispatch import Answer
from smcp_proto import tool_results
from smcp_proto.catalog import ENVELOPE_BYTES, SAID_AS, Ack, Row
from smcp_proto.errors import REQUEST_TOO_LARGE, ErrorBody, Malformed, SmcpError, TooLarge, refusal

LARGE: Final = exact_json.SMALL_BYTES
"""Bytes from which a message waits: to a client that has unread ones, or of one that is above its quota of bytes."""

AUTH_BYTES: Final = 32 * 1024
"""The limit on the payload of a CONNECT: any client can send one, and parsed JSON may take twenty times its bytes."""

UNREADABLE: Final = "not an object"
OVERSIZED: Final = "too long"
"""What a CONNECT says that is not a JSON object, or longer."""

_HEAD: Final = re.compile(rb"([0-6])(?:[0-9]{1,10}-)?(?:(/[^,?]*)(?:\?[^,]*)?,?)?([0-9]{1,100})?")
_ANSWER: Final = b"43"
_EVENT: Final = re.compile(rb'\[\s*"([^"\\\x00-\x1f]{0,256}+|(?:[^"\\\x00-\x1f]|\\.){0,256}+)"\s*(,)?')


@dataclass(slots=True)
class ClientEvent:
    """An event that a client emits (Socket.IO protocol, EVENT)."""

    id: int | None
    name: str
    body: bytes | None
    """The JSON of what follows the name, several arguments included; None: without an argument. Above the limit of an
    event only the beginning is there."""
    fault: str | None = None
    size: int = 0

    def refusal(self, row: Row | None, most: int) -> SmcpError | None:
        """Why it cannot be a request: `row` is None where no event has its name; a body has `most` bytes."""
        if row is None:
            return Malformed(self.fault or "unknown event", details={"field": ""})
        if row.event in SAID_AS:
            return Malformed(f"clients may not send {row.event}; send {SAID_AS[row.event]}", details={"field": ""})
        if self.size > most:
            return TooLarge(REQUEST_TOO_LARGE, details={"limit": most, "size": self.size})
        if self.body is None:
            return Malformed(self.fault or "the event needs one argument, an object", details={"field": ""})
        return None


@dataclass(slots=True)
class ClientConnect:
    """A client's wish for a session in a namespace (Socket.IO protocol, CONNECT)."""

    namespace: str
    auth: Any
    """What the client said about itself: an object, None, `UNREADABLE` or `OVERSIZED`."""


@dataclass(slots=True)
class ClientDisconnect:
    """A client's goodbye (Socket.IO protocol, DISCONNECT)."""


@dataclass(slots=True)
class ClientAck:
    """A client's answer to the event with that id (Socket.IO protocol, ACK)."""

    id: int
    argument: bytes | None
    """The text between the brackets, not parsed; None: it cannot be read."""


ClientPacket = ClientEvent | ClientAck | ClientConnect | ClientDisconnect


GATHERED: Final = 16 * 1024
"""Bytes from which a frame is written as it lies in memory, where copying it to one place costs more."""


class Frame:
    """A text message of engine.io, ready to be written; stands in a `SendQueue` beside engine.io's own packets."""

    __slots__ = ("parts", "size")

    def __init__(self, *parts: bytes) -> None:
        self.size = sum(map(len, parts))
        self.parts = parts if self.size >= GATHERED or len(parts) == 1 else (b"".join(parts),)

    @property
    def wire(self) -> bytes:
        if len(self.parts) > 1:
            self.parts = (b"".join(self.parts),)
        return self.parts[0]

    def encode(self, b64: bool = False) -> str:
        return self.wire.decode()


def ack_frame(packet_id: int, argument: bytes) -> Frame:
    return Frame(b"43/smcp,%d[" % packet_id, argument, b"]")


def request_frame(packet_id: int, event: str, body: bytes) -> Frame:
    return Frame(b'42/smcp,%d["%b",' % (packet_id, event.encode()), body, b"]")


def event_frame(event: str, body: bytes) -> Frame:
    return Frame(b"".join((b'42/smcp,["', event.encode(), b'",', body, b"]")))  # for many: copied once


class Assembly:
    """Puts one message together from its pieces, each as it comes: 32 MiB in one go would take 20 to 30 ms. What comes
    after `most` bytes is kept of answers only. `hold` is called before more bytes are kept, and may raise."""

    __slots__ = ("_hold", "_most", "size", "text")

    def __init__(self, most: int, hold: Callable[[int], None]) -> None:
        self._most = most
        self._hold = hold
        self.text: bytes | bytearray = b""
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if not self.text:
            self.text = piece
        elif self.size <= self._most or self.text.startswith(_ANSWER):
            if isinstance(self.text, bytes):
                self._hold(len(self.text))
                self.text = bytearray(self.text)
            self._hold(len(piece))
            self.text += piece


def read_packet(text: bytes | bytearray, start: int = 0, size: int = 0) -> ClientPacket | None:
    """Read what a client sent, from `start` on. None: a packet to ignore. `size`: bytes before truncation."""
    head = _HEAD.match(text, start)
    if head is None:
        return None
    kind, namespace, end = int(head[1]), head[2] or b"/", head.end()
    if kind == sio.CONNECT:
        return ClientConnect(namespace.decode("utf-8", "replace"), _auth(text[end:]))
    if namespace != b"/smcp":
        return None
    number = int(head[3]) if head[3] else None
    match kind:
        case sio.EVENT | sio.BINARY_EVENT:
            return _event(text, end, number, size, binary=kind == sio.BINARY_EVENT)
        case sio.ACK | sio.BINARY_ACK if number is not None:
            last = _closing_bracket(text) if kind == sio.ACK and text[end : end + 1] == b"[" else None
            return ClientAck(number, None if last is None else _cut(text, end + 1, last))
        case sio.DISCONNECT:
            return ClientDisconnect()
        case _:
            return None


def _event(text: bytes | bytearray, start: int, number: int | None, size: int, *, binary: bool) -> ClientEvent:
    head = _EVENT.match(text, start)
    name = None if head is None else _name(head[1])
    if binary:
        return ClientEvent(number, name or "", None, "binary data is not part of the protocol")
    if size > len(text) and head is not None:
        return ClientEvent(number, name or "", bytes(text[head.end() : head.end() + LARGE]), size=size - head.end() - 1)
    end = len(text) - 1 if text.endswith(b"]") else _closing_bracket(text)
    if head is None or end is None:
        return ClientEvent(number, "", None, "the event is not a JSON array that begins with its name")
    if name is None:
        return ClientEvent(number, "", None, "the event's name is not a string")
    body = _cut(text, head.end(), end)
    blank = not body or body.isspace()
    if blank is not (head[2] is None):
        return ClientEvent(number, name, None, "the event is not a JSON array")
    return ClientEvent(number, name, None if blank else body, size=len(body))


def _cut(text: bytes | bytearray, start: int, end: int) -> bytes:
    return text[start:end] if isinstance(text, bytes) else bytes(memoryview(text)[start:end])


def _closing_bracket(text: bytes | bytearray) -> int | None:
    end = len(text) if text[-1:] == b"]" else len(text.rstrip())
    return end - 1 if text[end - 1 : end] == b"]" else None


def _name(quoted: bytes) -> str | None:
    if b"\\" not in quoted and quoted.isascii():
        return quoted.decode()
    try:
        name: str = orjson.loads(b'"%s"' % quoted)
    except orjson.JSONDecodeError:
        return None
    return name


def _auth(text: bytes | bytearray) -> dict[str, Any] | str | None:
    if not text or len(text) > AUTH_BYTES:
        return OVERSIZED if text else None
    try:
        auth = orjson.loads(text)
        if isinstance(auth, dict):
            exact_json.check_depth(auth)
    except (orjson.JSONDecodeError, Malformed):
        return UNREADABLE
    return auth if auth is None or isinstance(auth, dict) else UNREADABLE


NULL: Final = b"null"
DONE: Final = b"[true,null]"


def largest_reply(max_message: int) -> int:
    return max(0, max_message - ENVELOPE_BYTES - 1)


def too_large(size: int, max_message: int) -> TooLarge:
    return TooLarge(
        "the reply is larger than this client takes in one message", details={"limit": max_message, "size": size}
    )


TOOL_CALL: Final = "client:tool_call"
READ_BY_PUBLISHED: Final = frozenset({404, 4006, 4007, 4008, *range(4014, 4020)})
"""Codes of the flat errors that the published Agent (0.4) shows; for others it shows a message of pydantic's."""


def ack_argument(row: Row | None, answer: Answer, *, flat_errors: bool) -> bytes:
    """The argument for `answer`, in the shape of the row's events. A client with `flat_errors` reads those of tool
    calls (else it gets a failed `CallToolResult`), and the details of a refused join or leave as a third element. `row`
    None: the event is unknown."""
    shape = Ack.REPLY if row is None else row.ack
    if answer.error is None:
        if shape is Ack.REPLY:
            return answer.body or NULL
        return DONE if shape is Ack.DONE else NULL
    is_call = row is not None and row.event == TOOL_CALL
    if shape is not Ack.DONE and (flat_errors or not is_call or answer.error in READ_BY_PUBLISHED):
        return answer.body
    error = ErrorBody.model_validate(orjson.loads(answer.body))
    if shape is Ack.DONE:
        return orjson.dumps([False, refusal(error), *([error.details] if flat_errors else [])])
    result = tool_results.failed(error.message)
    return orjson.dumps(result | {"meta": {"a2c_error": {"code": error.code, "details": error.details}}})
