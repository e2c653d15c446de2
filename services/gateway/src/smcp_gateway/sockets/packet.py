"""Socket.IO packets as the gateway reads and writes them: bytes in, bytes out.

What a client sends is cut, not parsed: the dispatcher parses the one argument of an event, and the same bytes go on
to the Computer unchanged (numbers of any size included). Nothing that a client can send makes reading raise:

- an event that cannot be read still has the id under which its refusal is acknowledged;
- binary events are refused at once, and their attachments ignored, so nothing is collected for them;
- an acknowledgement that cannot be read still has its id, so that who waits for it is answered.

An acknowledgement is written round JSON bytes that are there already.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson
from socketio import packet as sio

from smcp_bus.dispatch import Answer, failed
from smcp_proto import tool_results
from smcp_proto.catalog import Ack, Row
from smcp_proto.errors import ErrorBody, Malformed, TooLarge, refusal
from smcp_proto.validation import check_depth

NAMESPACE: Final = "/smcp"

ENVELOPE_BYTES: Final = 64
"""What a packet adds to the JSON of its argument, at most."""

AUTH_BYTES: Final = 64 * 1024
"""Of what a CONNECT says, at most: anybody can send one, and JSON may take twenty times its bytes once it is read."""

UNREADABLE: Final = "not an object"
OVERSIZED: Final = "too long"
"""Stand for what a CONNECT says where that is no JSON object, or longer."""

_HEAD: Final = re.compile(rb"([0-6])(?:[0-9]{1,10}-)?(?:(/[^,?]*)(?:\?[^,]*)?,?)?([0-9]{1,100})?")
_EVENT: Final = re.compile(rb'\[\s*"((?:[^"\\\x00-\x1f]|\\.){0,256}+)"\s*(,)?')


@dataclass(frozen=True, slots=True)
class Inbound:
    """An event as it came: its name, and the JSON of what stands behind it (several arguments included)."""

    event: str
    body: bytes | None
    """None: without an argument."""
    fault: str | None = None
    """Why it cannot be read at all."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event that a client emits (Socket.IO protocol, EVENT)."""

    namespace: str
    id: int | None
    """None: nobody waits for an acknowledgement."""
    inbound: Inbound


@dataclass(frozen=True, slots=True)
class ClientConnect:
    """A client's wish for a session in a namespace (Socket.IO protocol, CONNECT)."""

    namespace: str
    auth: Any
    """What the client said about itself: an object, None, `UNREADABLE` or `OVERSIZED`."""


@dataclass(frozen=True, slots=True)
class ClientDisconnect:
    """A client's goodbye (Socket.IO protocol, DISCONNECT)."""

    namespace: str


@dataclass(frozen=True, slots=True)
class ClientAck:
    """A client's answer to the event with that id (Socket.IO protocol, ACK)."""

    namespace: str
    id: int
    argument: bytes | None
    """What stands between the brackets, not parsed; None: it cannot be read."""


ClientPacket = ClientEvent | ClientAck | ClientConnect | ClientDisconnect


GATHERED: Final = 16 * 1024
"""Bytes from which a frame is written as it lies in memory, where copying it to one place costs more."""


class Frame:
    """A text message of engine.io, ready to be written: what stands in an `Outbox` beside engine.io's own packets."""

    __slots__ = ("parts", "size")

    def __init__(self, *parts: bytes) -> None:
        self.size = sum(map(len, parts))
        self.parts = parts if self.size >= GATHERED or len(parts) == 1 else (b"".join(parts),)

    @property
    def wire(self) -> bytes:
        """In one piece."""
        if len(self.parts) > 1:
            self.parts = (b"".join(self.parts),)
        return self.parts[0]

    @property
    def data(self) -> bytes:
        """Under engine.io's name for it."""
        return self.wire

    def encode(self, b64: bool = False) -> str:
        """As engine.io wants it for a polling response."""
        return self.wire.decode()


def ack_frame(packet_id: int, argument: bytes) -> Frame:
    """The acknowledgement of a request; `argument` is JSON."""
    return Frame(b"43/smcp,%d[" % packet_id, argument, b"]")


def request_frame(packet_id: int, event: str, body: bytes) -> Frame:
    """An event that the client acknowledges; `body` is JSON."""
    return Frame(b'42/smcp,%d["%b",' % (packet_id, event.encode()), body, b"]")


def event_frame(event: str, body: bytes) -> Frame:
    """A notification; `body` is JSON."""
    return Frame(b"".join((b'42/smcp,["', event.encode(), b'",', body, b"]")))  # for many: copied once


def read_packet(text: bytes, start: int = 0) -> ClientPacket | None:
    """Read what a client sent, from `start` on; None: nothing that anybody waits for."""
    head = _HEAD.match(text, start)
    if head is None:
        return None
    kind = int(head[1])
    raw = head[2]
    namespace = "/" if raw is None else NAMESPACE if raw == b"/smcp" else raw.decode("utf-8", "replace")
    match kind:
        case sio.EVENT:
            return ClientEvent(namespace, int(head[3]) if head[3] else None, _inbound(text, head.end()))
        case sio.BINARY_EVENT:
            fault = Inbound(_event_name(text, head.end()), None, "binary data is not part of the protocol")
            return ClientEvent(namespace, int(head[3]) if head[3] else None, fault)
        case sio.ACK if head[3]:
            return ClientAck(namespace, int(head[3]), _argument(text, head.end()))
        case sio.BINARY_ACK if head[3]:
            return ClientAck(namespace, int(head[3]), None)  # binary data is not part of the protocol
        case sio.CONNECT:
            return ClientConnect(namespace, _auth(text[head.end() :]))
        case sio.DISCONNECT:
            return ClientDisconnect(namespace)
        case _:
            return None


def _inbound(text: bytes, start: int) -> Inbound:
    head = _EVENT.match(text, start)
    end = len(text)
    if text[-1:] != b"]":
        end = len(text.rstrip())
    if head is None or text[end - 1 : end] != b"]":
        return Inbound("", None, "the event is not a JSON array that begins with its name")
    name = _name(head[1])
    if name is None:
        return Inbound("", None, "the event's name is not a string")
    body = text[head.end() : end - 1]
    if head[2] is None:
        return Inbound(name, None, "the event is not a JSON array" if body.strip() else None)
    if len(body) < SHORT and not body.strip():
        return Inbound(name, None, "the event is not a JSON array")
    return Inbound(name, body)


def _argument(text: bytes, start: int) -> bytes | None:
    end = len(text)
    if text[-1:] != b"]":
        end = len(text.rstrip())
    if text[start : start + 1] != b"[" or text[end - 1 : end] != b"]" or end - 1 <= start:
        return None
    return text[start + 1 : end - 1]


SHORT: Final = 16
"""A body that is longer than this is looked at by the dispatcher alone."""


def _event_name(text: bytes, start: int) -> str:
    head = _EVENT.match(text, start)
    return (_name(head[1]) or "") if head else ""


def _name(quoted: bytes) -> str | None:
    if b"\\" not in quoted and quoted.isascii():
        return quoted.decode()
    try:
        name: str = orjson.loads(b'"%s"' % quoted)
    except orjson.JSONDecodeError:
        return None
    return name


def _auth(text: bytes) -> dict[str, Any] | str | None:
    if not text or len(text) > AUTH_BYTES:
        return OVERSIZED if text else None
    try:
        auth = orjson.loads(text)
        if isinstance(auth, dict):
            check_depth(auth)
    except (orjson.JSONDecodeError, Malformed):
        return UNREADABLE
    return auth if auth is None or isinstance(auth, dict) else UNREADABLE


NULL: Final = b"null"
DONE: Final = b"[true,null]"


def largest_reply(max_message: int) -> int:
    """Bytes that a reply may have to a client that takes so many in one message."""
    return max(0, max_message - ENVELOPE_BYTES - 1)


TOOL_CALL: Final = "client:tool_call"
READ_BY_PUBLISHED: Final = frozenset({404, 4006, 4007, 4008, *range(4014, 4020)})
"""Codes of the flat errors that the published Agent (0.4) shows its user as what they say; of any other one it shows
what pydantic says about a result without `content`."""


def ack_argument(row: Row | None, answer: Answer, max_message: int, *, flat_errors: bool) -> bytes:
    """The argument for `answer`, in the shape of the row's events; 413 where the client could not take it.

    Args:
        row: None where no event of that name exists: then it is a flat error.
        max_message: bytes that one message to this client may have.
        flat_errors: whether the client reads a flat error of a tool call; else it gets a failed `CallToolResult`.
    """
    if len(answer.body) > largest_reply(max_message):
        error = TooLarge(
            "the reply is larger than this client takes in one message",
            details={"limit": max_message, "size": len(answer.body)},
        )
        answer = failed(error.body())
    shape = Ack.REPLY if row is None else row.ack
    if shape is Ack.DONE:
        return DONE if answer.error is None else orjson.dumps([False, refusal(_error(answer.body))])
    if answer.error is None and shape is not Ack.REPLY:
        return NULL
    if answer.error is None or flat_errors or row is None or row.event != TOOL_CALL:
        return answer.body or NULL
    return answer.body if answer.error in READ_BY_PUBLISHED else _failed_result(_error(answer.body))


def _failed_result(error: ErrorBody) -> bytes:
    result = tool_results.failed(error.message)
    return orjson.dumps(result | {"meta": {"a2c_error": {"code": error.code, "details": error.details}}})


def _error(body: bytes) -> ErrorBody:
    return ErrorBody.model_validate(orjson.loads(body))
