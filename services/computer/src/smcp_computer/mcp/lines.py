"""Bytes in, whole lines out; linear in their size, however the bytes are cut. Pure."""

import codecs
from dataclasses import dataclass
from io import IncrementalNewlineDecoder
from typing import Final

KEPT: Final = 2048
"""Characters of the beginning, and of the end, that are kept of a line that is too long."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A line that was longer than allowed: what is known of it."""

    head: str
    tail: str
    size: int
    """Its bytes in UTF-8."""


class Lines:
    """Args:
    decoder: what makes lines end with a newline alone, too, where they may end otherwise.
    longest: bytes (of UTF-8) that a line may have. What is above it is let go as it comes.
    """

    def __init__(self, decoder: codecs.IncrementalDecoder | IncrementalNewlineDecoder, longest: int) -> None:
        self._decoder = decoder
        self._longest = longest
        self._parts: list[str] = []
        self._size = 0
        self._head: str | None = None
        """Of a line that is too long by now; its end is the one part then."""

    def feed(self, chunk: bytes) -> list[str | Cut]:
        """The lines that `chunk` completes.

        Raises:
            UnicodeDecodeError: the bytes are not of the encoding.
        """
        first, *others = self._decoder.decode(chunk).split("\n")
        self._add(first)
        lines = []
        for other in others:
            lines.append(self._end())
            self._add(other)
        return lines

    def _add(self, text: str) -> None:
        self._size += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        self._parts.append(text)
        if self._size <= self._longest:
            return
        whole = "".join(self._parts)
        self._head = whole[:KEPT] if self._head is None else self._head + text[: KEPT - len(self._head)]
        self._parts = [whole[-KEPT:]]

    def _end(self) -> str | Cut:
        text = "".join(self._parts)
        line = text if self._head is None else Cut(self._head, text, self._size)
        self._parts, self._size, self._head = [], 0, None
        return line
