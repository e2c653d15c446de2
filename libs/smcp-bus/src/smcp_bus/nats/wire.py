"""NATS' protocol as bytes: messages cut from what a connection brings, and header blocks.

nats-py's parser copies a body five times, in a task of its own. It still reads its own subscriptions (JetStream's).
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from smcp_bus.bus import NO_HEADERS, Headers
from smcp_bus.headers import BUDGET, PROGRESS

Receiver = Callable[[bytes, bytes, bytes, bytes], None]
"""Takes subject, reply subject, header block and body of a message. Runs inside the read loop: it must neither
block nor raise."""

_MESSAGE: Final = re.compile(rb"(H)?MSG (\S+) ([0-9]+) (?:(\S+) )?(?(1)([0-9]+) )([0-9]+)\r\n")
"""Subject, number of the subscription, reply subject, bytes of the headers (`H`), and bytes of all
(https://docs.nats.io/reference/reference-protocols/nats-protocol)."""
_CRLF: Final = b"\r\n"


class Splitter:
    """Divides what nats-server sends into messages for receivers, lines for the bus, and the rest, which is nats-py's.

    Args:
        receivers: by number of the subscription.
        is_ours: given each whole line that is not a message, with its line break: whether it is dealt with.
        is_up: whether the connection stands; asked before each message.
    """

    def __init__(
        self, receivers: Mapping[int, Receiver], is_ours: Callable[[bytes], bool], is_up: Callable[[], bool]
    ) -> None:
        self._receivers = receivers
        self._is_ours = is_ours
        self._is_up = is_up
        self.forget()

    def forget(self) -> None:
        self._begun: list[bytes] = []
        """The parts of a line or message that has not come whole."""
        self._missing = 0
        """How many bytes a message lacks; 0: a line has begun, and its end is not known."""

    def take(self, came: bytes) -> bytes:
        """Hand on what is for receivers and for the bus, and keep what has only begun. Returns what is nats-py's."""
        at = 0
        rest: list[bytes] = []
        if self._begun:
            at = self._missing or len(came)
            self._begun.append(came[:at])
            if self._missing > len(came):
                self._missing -= len(came)
                return b""
            # Of what follows a message nothing is joined to it: a copy of a whole read costs more than all else here.
            begun, self._begun, self._missing = b"".join(self._begun), [], 0
            rest.append(self.take(begun))
        while at < len(came) and self._is_up():
            line = _MESSAGE.match(came, at)
            if line is None:
                end = came.find(_CRLF, at) + len(_CRLF)
                if end < len(_CRLF):
                    self._begun, self._missing = [came[at:]], 0
                    break
                if not self._is_ours(came[at:end]):
                    rest.append(came[at:end])
                at = end
                continue
            _, subject, number, reply, head, size = line.groups()
            begin = line.end()
            body = begin + int(head or 0)
            end = begin + int(size)
            after = end + len(_CRLF)
            if after > len(came):
                self._begun, self._missing = [came[at:]], after - len(came)
                break
            receive = self._receivers.get(int(number))
            if receive is None:
                rest.append(came[at:after])
            else:
                receive(subject, reply or b"", came[begin:body], came[body:end])
            at = after
        return b"".join(rest)


SIZE: Final = "Smcp-Size"
"""Bytes of the whole body; only on the first message of a chunked one."""
CHUNKS: Final = "Smcp-Chunks"
CHUNK: Final = "Smcp-Chunk"
"""In a pull the index that is asked for, `done`, or `here`; in its answer the index that comes."""
_FIRST_LINE: Final = "NATS/1.0\r\n"
NOTE_HEAD: Final = f"{_FIRST_LINE}{PROGRESS}: 1\r\n\r\n".encode()
_NO_RESPONDERS: Final = b"NATS/1.0 503"


def encode_head(headers: Headers, budget_ms: int | None = None) -> bytes:
    """The header block before a body, a request's time budget first; empty if it has nothing to say.

    Raises ValueError: a header holds a line break. A peer's value must not add a header, or end the block.
    """
    if not headers and budget_ms is None:
        return b""
    text = "" if budget_ms is None else f"{BUDGET}: {budget_ms}\r\n"
    breaks = len(headers) + bool(text)
    for name, value in headers.items():
        text += f"{name}: {value}\r\n"
    if text.count("\n") != breaks or text.count("\r") != breaks:
        raise ValueError("a header holds a line break")
    return f"{_FIRST_LINE}{text}\r\n".encode()


def decode_head(head: bytes) -> Headers:
    """The headers of a block; lines that are none are skipped, a status in the first line as well."""
    if not head:
        return NO_HEADERS
    headers: dict[str, str] = {}
    for line in head.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers


def without_plan(headers: Headers) -> Headers:
    """Those of a body that has come whole."""
    return {name: value for name, value in headers.items() if name not in (SIZE, CHUNKS)}


def is_no_responders(head: bytes, body: bytes) -> bool:
    return not body and head.startswith(_NO_RESPONDERS)
