"""Bounded reading of what an MCP server sends: lines, messages, and HTTP bodies.

Turns oversized or unparsable responses into errors for the waiting request. Where the response names its request, a
JSON-RPC error of ours takes its place; errors of the SDK's HTTP transports are recognised by their texts.
"""

import codecs
import re
from dataclasses import dataclass
from typing import Final

import httpx2
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from smcp_computer.mcp.errors import AnswerTooLarge, BadAnswer, ServerError
from smcp_computer.mcp.server_log import StderrLog
from smcp_proto.validation import mended

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
    """Splits bytes into lines.

    Args:
        longest: bytes (of UTF-8) that a line may have. What is above it is let go as it comes.
    """

    def __init__(self, decoder: codecs.IncrementalDecoder, longest: int) -> None:
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


ROOM: Final = 64 * 1024
"""Bytes that a message may have beside what it carries."""
ABOVE_LIMIT: Final = "the answer is above the limit"
"""The text of the error by which a transport of ours breaks off an answer over HTTP."""

_CANNOT_BE_READ: Final = "sent an answer that cannot be read"
_EVENT_TOO_LARGE: Final = "SSE stream failed: Server-sent event exceeded"

_ID: Final = r'"id"\s*:\s*"?(?P<id>[0-9]{1,18})"?'
"""The SDK counts its requests."""
_VERSION: Final = r'"jsonrpc"\s*:\s*"2\.0"'
_OUTCOME: Final = r'"(?:result|error)"\s*:'
_ID_FIRST: Final = re.compile(rf"\s*\{{\s*(?:{_VERSION}\s*,\s*)?{_ID}\s*,\s*(?:{_VERSION}\s*,\s*)?{_OUTCOME}")
_ID_LAST: Final = re.compile(rf"{_ID}\s*(?:,\s*{_VERSION}\s*)?\}}\s*\Z")
_IS_ANSWER: Final = re.compile(rf"\s*\{{\s*(?:{_VERSION}\s*,\s*)?{_OUTCOME}")


def read_message(text: str) -> tuple[types.JSONRPCMessage, bool]:
    """The message, and whether halves of surrogate pairs in it were replaced.

    Raises:
        ValueError: it is none.
    """
    try:
        return types.jsonrpc_message_adapter.validate_json(text, by_name=False), False
    except ValueError:
        return types.jsonrpc_message_adapter.validate_json(mended(text), by_name=False), True


def in_its_place(head: str, tail: str, why: ServerError) -> types.JSONRPCError | None:
    """The error for the request whose answer has this beginning and this end; its `data` is `why`.

    None: it is no answer, or does not say whose at its beginning or its end.
    """
    found = _ID_FIRST.match(head)
    if found is None and _IS_ANSWER.match(head) is not None:
        found = _ID_LAST.search(tail)
    if found is None:
        return None
    error = types.ErrorData(code=types.PARSE_ERROR, message="the answer was not read", data=why)
    return types.JSONRPCError(jsonrpc="2.0", id=int(found["id"]), error=error)


def read_again(server: str, refused: ValidationError) -> SessionMessage | ValidationError:
    """What the SDK's transport over HTTP could not read, as `read_message` or `in_its_place` would have it."""
    text = refused.errors(include_url=False, include_context=False)[0]["input"]
    if not isinstance(text, str):
        return refused
    try:
        return SessionMessage(read_message(text)[0])
    except ValueError:
        error = in_its_place(text[:KEPT], text[-KEPT:], BadAnswer(server, _CANNOT_BE_READ))
        return refused if error is None else SessionMessage(error)


def unread(server: str, error: MCPError, *, limit: int) -> ServerError | None:
    """The error of an answer that was not read; None: it was, and is an error of the server's own.

    Args:
        limit: bytes that an answer may have.
    """
    if isinstance(error.data, ServerError):
        return error.data
    if error.code == types.CONNECTION_CLOSED and error.message.startswith(_EVENT_TOO_LARGE):
        return AnswerTooLarge(server, limit=limit)
    if error.code == types.PARSE_ERROR:
        return (
            AnswerTooLarge(server, limit=limit) if ABOVE_LIMIT in error.message else BadAnswer(server, _CANNOT_BE_READ)
        )
    return None


class AboveLimit(httpx2.StreamError):
    """Breaks off an answer over HTTP; the SDK answers the waiting request with an error that holds this text."""

    def __init__(self) -> None:
        super().__init__(ABOVE_LIMIT)


def parsed(text: str | Cut, log: StderrLog, max_message: int) -> types.JSONRPCMessage | None:
    """One message, or the error in the place of one that is not read; None: there is nothing for anybody.

    Args:
        max_message: bytes that it may have; for the error.
    """
    if isinstance(text, Cut):
        log.warning("sent a message of %d bytes, more than %d: it is not read", text.size, max_message)
        too_large = AnswerTooLarge(log.server, limit=max_message, size=text.size)
        return in_its_place(text.head, text.tail, too_large)
    if not text.strip():
        return None
    try:
        message, replaced = read_message(text)
    except ValueError:
        log.warning("wrote a line that is no message: %.200r", text)
        return in_its_place(text[:KEPT], text[-KEPT:], BadAnswer(log.server, _CANNOT_BE_READ))
    if replaced:
        log.warning("sent halves of surrogate pairs; they are replaced by U+FFFD")
    return message
