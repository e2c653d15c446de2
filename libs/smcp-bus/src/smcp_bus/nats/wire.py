"""NATS' protocol as bytes: messages cut from what a connection brings, header blocks, the texts of refusals.

nats-py's parser copies a body five times on its way, and runs in a task that has to be woken for it. It still reads
what is no message, and the messages of its own subscriptions (JetStream's).
"""

import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from smcp_bus.bus import NO_HEADERS, Headers
from smcp_bus.errors import BusError
from smcp_bus.headers import BUDGET

Receiver = Callable[[bytes, bytes, bytes, bytes], None]
"""Takes subject, reply subject, header block and body of a message. Runs inside the read loop: it must neither
block nor raise."""

_LINE: Final = re.compile(rb"(H)?MSG (\S+) ([0-9]+) (?:(\S+) )?(?(1)([0-9]+) )([0-9]+)\r\n")
"""The line before a message: subject, number of the subscription, reply subject, bytes of the headers (`H`), and bytes
of all (https://docs.nats.io/reference/reference-protocols/nats-protocol)."""
_LONGEST_LINE: Final = 4096
"""As nats-server has it."""
_CRLF: Final = b"\r\n"


class _Begun:
    """A message whose beginning has come."""

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


_KEPT: Final = 64
"""Refusals that are remembered: each is asked for right after the round trip that brought it."""


class Denials:
    """The refusals that were heard last. nats-py gives nats-server's words in lower case."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=_KEPT)

    def hear(self, text: str) -> None:
        """nats-server has refused something, in these words."""
        self._texts.append(text)

    def forgive(self, subject: str) -> None:
        """Forget an earlier refusal to subscribe to `subject`: permissions may have changed."""
        self._texts = deque((text for text in self._texts if not _of_subscription(text, subject)), _KEPT)

    def check_permitted(self, subject: str) -> None:
        """After a round trip. Raises BusError where nats-server refused to subscribe to `subject`."""
        if any(_of_subscription(text, subject) for text in self._texts):
            raise BusError(f"not permitted to subscribe to {subject}")


def is_of_publishing(text: str, subject: str) -> bool:
    """Whether nats-server refuses with `text` to publish to `subject`."""
    return f'for publish to "{subject.lower()}"' in text


def _of_subscription(text: str, subject: str) -> bool:
    return f'for subscription to "{subject.lower()}"' in text


class Messages:
    """Of one connection at a time.

    Args:
        receivers: by number of the subscription.
        is_up: whether the connection stands; asked before each message.
    """

    def __init__(self, receivers: Mapping[int, Receiver], is_up: Callable[[], bool]) -> None:
        self._receivers = receivers
        self._is_up = is_up
        self._begun: _Begun | None = None
        self._line = b""
        """The beginning of a line."""

    def forget(self) -> None:
        """The connection broke: what has begun does not end."""
        self._begun, self._line = None, b""

    def take(self, came: bytes) -> bytes:
        """Hand messages from the beginning of `came` on to their receivers, and keep one that has only begun.

        Returns:
            From the first byte on that is for somebody else.
        """
        at = 0
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
        while self._is_up():
            line = _LINE.match(came, at)
            if line is None:
                if _begins_line(came, at):
                    self._line = came[at:]
                    return b""
                break
            _, subject, number, reply, head, size = line.groups()
            if (receive := self._receivers.get(int(number))) is None:
                break
            begin = line.end()
            body = begin + int(head or 0)
            end = begin + int(size)
            at = end + len(_CRLF)
            if at > len(came):
                self._begun = _Begun(int(number), subject, reply or b"", body - begin, end - begin, came[begin:])
                return b""
            receive(subject, reply or b"", came[begin:body], came[body:end])
        return came[at:] if at else came


def _begins_line(came: bytes, at: int) -> bool:
    """Whether it may go on as a line of a message."""
    left = len(came) - at
    return 0 < left < _LONGEST_LINE and came[at : at + 1] in (b"H", b"M") and came.find(_CRLF, at) < 0


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
    """Whether this is nats-server saying that nobody listens on the subject of a request."""
    return not body and head.startswith(_NO_RESPONDERS)
