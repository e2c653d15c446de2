"""Server-sent events: bytes in, whole events out, as the HTML standard has them (9.2.6). Pure."""

import codecs
from dataclasses import dataclass
from io import IncrementalNewlineDecoder
from typing import Final

from smcp_computer.mcp.reading import KEPT, Cut, Lines

DEFAULT_NAME: Final = "message"
_LONGEST_FIELD: Final = len("event: ")


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` and `retry` are for clients that come back to a stream; MCP's do not."""

    name: str
    data: str | Cut
    """Its lines of data, joined; of what is longer than allowed what is known."""


class Events:
    """Args:
    longest: bytes (of UTF-8) that the data of an event may have. What is above it is let go as it comes.
    """

    def __init__(self, longest: int) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._lines = Lines(IncrementalNewlineDecoder(utf8, translate=True), longest + _LONGEST_FIELD)
        self._longest = longest
        self._begin()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes. One without data is none."""
        found = []
        for line in self._lines.feed(chunk):
            if line != "":
                self._field(line)
                continue
            if self._data:
                found.append(Event(self._name or DEFAULT_NAME, self._joined()))
            self._begin()
        return found

    def _begin(self) -> None:
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._head: str | None = None
        """Of data that are too long by now; their end is the one line then."""

    def _field(self, line: str | Cut) -> None:
        head, tail = (line.head, line.tail) if isinstance(line, Cut) else (line, line)
        name, _, value = head.partition(":")
        dropped = len(head) - len(value.removeprefix(" "))
        value = head[dropped:]
        if name == "event":
            self._name = value
        elif name == "data":
            if isinstance(line, Cut):
                self._add(value, value if tail == head else tail, line.size - dropped)
            else:
                self._add(value, value, len(value) if value.isascii() else len(value.encode("utf-8", "replace")))

    def _add(self, head: str, tail: str, size: int) -> None:
        self._size += size + bool(self._data)
        if self._size <= self._longest:
            self._data.append(head)
            return
        before = self._data if self._head is None else [self._head]
        self._head = "\n".join([*before, head])[:KEPT]
        self._data = ["\n".join([*self._data, tail])[-KEPT:]]

    def _joined(self) -> str | Cut:
        data = "\n".join(self._data)
        return data if self._head is None else Cut(self._head, data, self._size)
