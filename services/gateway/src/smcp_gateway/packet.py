"""Socket.IO packets as the gateway reads and writes them.

What a client sends is cut, not parsed: the door parses the one argument of an event, and the same bytes go on to the
Computer unchanged (numbers of any size included). Nothing that a client can send makes reading raise:

- an event becomes an `Inbound` under one internal name, so that a client cannot call the handlers of `connect` and
  `disconnect`, and one that cannot be read still has the id under which its refusal is acknowledged;
- binary events are refused at once, and their attachments ignored, so nothing is collected for them.

An acknowledgement is written round JSON bytes that are there already.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson
from socketio import packet as sio

EVENT_NAME: Final = "event"
"""Under which python-socketio dispatches every event of a client."""

ENVELOPE_BYTES: Final = 64
"""What a packet adds to the JSON of its argument, at most."""

_HEAD: Final = re.compile(r"([0-6])(?:([0-9]{1,10})-)?(?:(/[^,?]*)(?:\?[^,]*)?,?)?([0-9]{1,100})?")
_EVENT: Final = re.compile(r'\[\s*("(?:[^"\\\x00-\x1f]|\\.)*")\s*(,)?')


@dataclass(frozen=True, slots=True)
class Inbound:
    """An event as it came: its name, and the JSON of what stands behind it (several arguments included)."""

    event: str
    body: bytes | None
    """None: without an argument."""
    fault: str | None = None
    """Why it cannot be read at all."""


class OrjsonModule:
    """orjson with the signatures that python-socketio expects of a JSON module."""

    @staticmethod
    def dumps(value: Any, **_: Any) -> str:
        return orjson.dumps(value).decode()

    @staticmethod
    def loads(text: str | bytes, **_: Any) -> Any:
        return orjson.loads(text)


class GatewayPacket(sio.Packet):
    """The packet class of the gateway's server (`AsyncServer(serializer=…)`)."""

    json = OrjsonModule  # type: ignore[assignment] # it is a module there

    def __init__(
        self,
        packet_type: int = sio.EVENT,
        data: Any = None,
        namespace: str | None = None,
        id: int | None = None,  # noqa: A002 -- python-socketio's name
        binary: object = None,
        encoded_packet: str | bytes | None = None,
    ) -> None:
        self.packet_type = packet_type
        self.data = data
        self.namespace = namespace
        self.id = id
        self.attachment_count = 0
        self.attachments: list[bytes] = []
        if encoded_packet is not None:
            self.decode(encoded_packet)

    def encode(self) -> str:
        """The packet as text. The data of an ACK is a list of one `bytes`: the JSON of its argument."""
        head = str(self.packet_type)
        if self.namespace is not None and self.namespace != "/":
            head = f"{head}{self.namespace},"
        if self.id is not None:
            head = f"{head}{self.id}"
        match self.data:
            case [bytes(body)] if self.packet_type == sio.ACK:
                return f"{head}[{body.decode()}]"
            case None:
                return head
            case data:
                return head + self.json.dumps(data)

    def decode(self, encoded_packet: str | bytes) -> int:
        """Read a packet; what is none becomes an acknowledgement that nobody waits for."""
        head = _HEAD.match(encoded_packet) if isinstance(encoded_packet, str) else None
        if head is None or isinstance(encoded_packet, bytes):
            self._ignored()
            return 0
        kind, _, self.namespace, packet_id = head.groups()
        self.packet_type = int(kind)
        self.id = int(packet_id) if packet_id else None
        rest = encoded_packet[head.end() :]
        match self.packet_type:
            case sio.EVENT:
                self.data = [EVENT_NAME, _inbound(rest)]
            case sio.BINARY_EVENT:
                self.packet_type = sio.EVENT
                self.data = [EVENT_NAME, Inbound(_event_name(rest), None, "binary data is not part of the protocol")]
            case sio.CONNECT:
                self.data = _parsed(rest)
            case sio.DISCONNECT:
                self.data = None
            case _:
                self._ignored()
        return 0

    def _ignored(self) -> None:
        self.packet_type = sio.ACK
        self.id = None
        self.data = []


def _inbound(text: str) -> Inbound:
    head = _EVENT.match(text)
    end = text.rstrip()
    if head is None or not end.endswith("]"):
        return Inbound("", None, "the event is not a JSON array that begins with its name")
    name = _name(head[1])
    rest = end[head.end() : -1]
    if head[2] is None or not rest.strip():
        return Inbound(name, None, None if head[2] is None and not rest.strip() else "the event is not a JSON array")
    try:
        return Inbound(name, rest.encode())
    except UnicodeEncodeError:
        return Inbound(name, None, "the event is not valid Unicode")


def _event_name(text: str) -> str:
    head = _EVENT.match(text)
    return _name(head[1]) if head else ""


def _name(quoted: str) -> str:
    if "\\" not in quoted:
        return quoted[1:-1]
    name = _parsed(quoted)
    return name if isinstance(name, str) else ""


def _parsed(text: str) -> Any:
    if not text:
        return None
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return UNREADABLE


UNREADABLE: Final = object()
"""Stands for JSON that cannot be read."""
