"""NATS' protocol as bytes: messages cut from what a connection brings, and header blocks.

nats-py's parser copies a body five times on its way, and runs in a task that has to be woken for it. It still reads
the messages of its own subscriptions (JetStream's).
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from smcp_bus.bus import NO_HEADERS, Headers
from smcp_bus.headers import BUDGET

Receiver = Callable[[bytes, bytes, bytes, bytes], None]
"""Takes subject, reply subject, header block and body of a message. Runs inside the read loop: it must neither
block nor raise."""

_MESSAGE: Final = re.compile(rb"(H)?MSG (\S+) ([0-9]+) (?:(\S+) )?(?(1)([0-9]+) )([0-9]+)\r\n")
"""The line before a message: subject, number of the subscription, reply subject, bytes of the headers (`H`), and bytes
of all (https://docs.nats.io/reference/reference-protocols/nats-protocol)."""
_LONGEST_LINE: Final = 1024 * 1024
"""An INFO names all nodes of a cluster; a line that is longer is none."""
_CRLF: Final = b"\r\n"


class _Begun:
    __slots__ = ("head", "missing", "number", "parts", "reply", "size", "subject")

    def __init__(self, number: int, subject: bytes, reply: bytes, head: int, size: int, first: bytes) -> None:
        self.number = number
        self.subject = subject
        self.reply = reply
        self.head = head
        self.size = size
        self.parts = [first]
        self.missing = size + len(_CRLF) - len(first)

    def deliver(self, receive: Receiver) -> None:
        whole = b"".join(self.parts)
        receive(self.subject, self.reply, whole[: self.head], whole[self.head : self.size])


class Splitter:
    """Divides what nats-server sends into messages for receivers, lines for the bus, and the rest, which is nats-py's.

    Args:
        receivers: by number of the subscription.
        is_ours: given each whole line that is no message, with its line break: whether it is dealt with.
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
        self._begun: _Begun | None = None
        self._line = b""
        """The beginning of a line."""
        self._others = 0
        """Bytes that are missing of a message of nats-py's."""

    def take(self, came: bytes) -> bytes:
        """Hand on what is for receivers and for the bus, and keep what has only begun. Returns what is nats-py's."""
        at = 0
        rest: list[bytes] = []
        if self._line:
            came, self._line = self._line + came, b""
        elif (begun := self._begun) is not None:
            at = begun.missing
            begun.parts.append(came[:at])
            begun.missing -= len(begun.parts[-1])
            if begun.missing:
                return b""
            self._begun = None
            if (receive := self._receivers.get(begun.number)) is not None:  # not unsubscribed meanwhile
                begun.deliver(receive)
        elif self._others:
            at = min(self._others, len(came))
            rest.append(came[:at])
            self._others -= at
        while at < len(came) and self._is_up():
            line = _MESSAGE.match(came, at)
            if line is None:
                at = self._control(came, at, rest)
                continue
            _, subject, number, reply, head, size = line.groups()
            begin = line.end()
            body = begin + int(head or 0)
            end = begin + int(size)
            receive = self._receivers.get(int(number))
            if receive is None:
                rest.append(came[at : end + len(_CRLF)])
                at = end + len(_CRLF)
                self._others = max(0, at - len(came))
                continue
            at = end + len(_CRLF)
            if at > len(came):
                self._begun = _Begun(int(number), subject, reply or b"", body - begin, end - begin, came[begin:])
                break
            receive(subject, reply or b"", came[begin:body], came[body:end])
        return b"".join(rest)

    def _control(self, came: bytes, at: int, rest: list[bytes]) -> int:
        end = came.find(_CRLF, at) + len(_CRLF)
        if end < len(_CRLF):
            if len(came) - at < _LONGEST_LINE:
                self._line = came[at:]
            else:
                rest.append(came[at:])  # nats-py says what is wrong with it
            return len(came)
        line = came[at:end]
        if not self._is_ours(line):
            rest.append(line)
        return end


_FIRST_LINE: Final = "NATS/1.0\r\n"
_NO_RESPONDERS: Final = b"NATS/1.0 503"


def encode_head(headers: Headers) -> bytes:
    """The block that goes before a body; empty where there are no headers.

    Raises:
        ValueError: a name or value holds a line break.
    """
    return _block([f"{name}: {value}" for name, value in headers.items()]) if headers else b""


def encode_request_head(headers: Headers, budget_ms: int) -> bytes:
    """The block of a request: its time budget, then `headers`.

    Raises:
        ValueError: a name or value holds a line break.
    """
    if not headers:
        return f"{_FIRST_LINE}{BUDGET}: {budget_ms}\r\n\r\n".encode()
    return _block([f"{BUDGET}: {budget_ms}", *(f"{name}: {value}" for name, value in headers.items())])


def _block(lines: list[str]) -> bytes:
    text = "\r\n".join(lines)
    breaks = len(lines) - 1
    # A value that came from a peer must not write a header of its own, or end the block.
    if text.count("\n") != breaks or text.count("\r") != breaks:
        raise ValueError("a header holds a line break")
    return f"{_FIRST_LINE}{text}\r\n\r\n".encode()


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


def is_no_responders(head: bytes, body: bytes) -> bool:
    return not body and head.startswith(_NO_RESPONDERS)
