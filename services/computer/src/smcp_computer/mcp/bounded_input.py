"""Bounded reading of what an MCP server sends: lines, messages, and HTTP bodies.

Turns oversized or unparsable responses into errors for the waiting request. Where the response names its request, a
JSON-RPC error of ours takes its place; errors of the SDK's HTTP transports are recognised by their texts.
"""

import codecs
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

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
    """Splits bytes into lines. Of a line above `longest` bytes (of UTF-8) only its ends are kept."""

    def __init__(self, decoder: codecs.IncrementalDecoder, longest: int) -> None:
        self._decoder = decoder
        self._longest = longest
        self._parts: list[str] = []
        self._size = 0
        self._head: str | None = None
        """Of a line that is too long by now; its end is the one part then."""

    def feed(self, chunk: bytes) -> list[str | Cut]:
        """The lines that `chunk` completes. Raises UnicodeDecodeError."""
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


def parsed(text: str | Cut, log: StderrLog, max_message: int) -> types.JSONRPCMessage | None:
    """A line of a program: a message, or the error for the request whose answer it is; None: nothing for anybody."""
    if isinstance(text, Cut):
        log.warning("sent a message of %d bytes, more than %d: it is not read", text.size, max_message)
        return in_its_place(text.head, text.tail, AnswerTooLarge(log.server, limit=max_message, size=text.size))
    if not text.strip():
        return None
    if (message := _message(text)) is None:
        log.warning("wrote a line that is no message: %.200r", text)
    return message or _unreadable(log.server, text)


def read_again(server: str, refused: ValidationError) -> SessionMessage | ValidationError:
    """What the SDK's transport over HTTP could not read, as `parsed` would have it."""
    text = refused.errors(include_url=False, include_context=False)[0]["input"]
    message = (_message(text) or _unreadable(server, text)) if isinstance(text, str) else None
    return refused if message is None else SessionMessage(message)


def _message(text: str) -> types.JSONRPCMessage | None:
    """Halves of surrogate pairs, which pydantic refuses, are replaced by U+FFFD."""
    with suppress(ValueError):
        return types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    with suppress(ValueError):
        return types.jsonrpc_message_adapter.validate_json(mended(text), by_name=False)
    return None


def _unreadable(server: str, text: str) -> types.JSONRPCError | None:
    return in_its_place(text[:KEPT], text[-KEPT:], BadAnswer(server, _CANNOT_BE_READ))


def in_its_place(head: str, tail: str, why: ServerError) -> types.JSONRPCError | None:
    """The error for the request whose answer has these ends; its `data` is `why`. None: they do not name a request."""
    found = _ID_FIRST.match(head)
    if found is None and _IS_ANSWER.match(head) is not None:
        found = _ID_LAST.search(tail)
    if found is None:
        return None
    error = types.ErrorData(code=types.PARSE_ERROR, message="the answer was not read", data=why)
    return types.JSONRPCError(jsonrpc="2.0", id=int(found["id"]), error=error)


def unread(server: str, error: MCPError, *, limit: int) -> ServerError | None:
    """The error of an answer that was not read (of `limit` bytes at most); None: it is an error of the server's own."""
    if isinstance(error.data, ServerError):
        return error.data
    is_refused = error.code == types.PARSE_ERROR
    if (is_refused and ABOVE_LIMIT in error.message) or (
        error.code == types.CONNECTION_CLOSED and error.message.startswith(_EVENT_TOO_LARGE)
    ):
        return AnswerTooLarge(server, limit=limit)
    return BadAnswer(server, _CANNOT_BE_READ) if is_refused else None
