"""Turns oversized or unparsable answers of MCP servers into errors for the requests that wait, on every transport.

The SDK drops them, and their requests would wait in vain. Its HTTP transports report some of them by an error, whose
text tells why (`unread`); of a line that a program writes the request is looked for in what there is of it.
"""

import re
from contextlib import suppress
from typing import Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from smcp_computer.mcp.errors import AnswerTooLarge, BadAnswer, ServerError
from smcp_proto.validation import mended

KEPT: Final = 2048
"""Characters of the beginning, and of the end, that are kept of a line that is too long."""
ROOM: Final = 64 * 1024
"""Bytes that a message may have beside what it carries."""
ABOVE_LIMIT: Final = "the answer is above the limit"
TOO_MANY_VALUES: Final = "the answer holds too many values"
"""The texts of the errors by which a transport of ours breaks off an answer over HTTP."""

_CANNOT_BE_READ: Final = "sent an answer that cannot be read"
_OF_TRANSPORTS: Final = frozenset({types.PARSE_ERROR, types.CONNECTION_CLOSED})
_EVENT_TOO_LARGE: Final = "SSE stream failed: Server-sent event exceeded"

_ID: Final = r'"id"\s*:\s*"?(?P<id>[0-9]{1,18})"?'
"""The SDK counts its requests."""
_VERSION: Final = r'"jsonrpc"\s*:\s*"2\.0"'
_OUTCOME: Final = r'"(?:result|error)"\s*:'
_ID_FIRST: Final = re.compile(rf"\s*\{{\s*(?:{_VERSION}\s*,\s*)?{_ID}\s*,\s*(?:{_VERSION}\s*,\s*)?{_OUTCOME}")
_ID_LAST: Final = re.compile(rf"{_ID}\s*(?:,\s*{_VERSION}\s*)?\}}\s*\Z")
_IS_ANSWER: Final = re.compile(rf"\s*\{{\s*(?:{_VERSION}\s*,\s*)?{_OUTCOME}")


def read_again(server: str, refused: ValidationError) -> SessionMessage | ValidationError:
    """What the SDK's transport over HTTP could not read, read once more, with what pydantic refuses replaced."""
    text = refused.errors(include_url=False, include_context=False)[0]["input"]
    message = (message_of(text) or unreadable(server, text)) if isinstance(text, str) else None
    return refused if message is None else SessionMessage(message)


def message_of(text: str) -> types.JSONRPCMessage | None:
    """None: it is none. Halves of surrogate pairs, which pydantic refuses, are replaced by U+FFFD."""
    with suppress(ValueError):
        return types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    with suppress(ValueError):
        return types.jsonrpc_message_adapter.validate_json(mended(text), by_name=False)
    return None


def unreadable(server: str, text: str) -> types.JSONRPCError | None:
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


def unread(server: str, error: MCPError, *, limit: int, max_values: int) -> ServerError | None:
    """The error of an answer that was not read (of `limit` bytes and so many values at most); None: it is an error of
    the server's own."""
    if isinstance(error.data, ServerError):
        return error.data
    if error.code in _OF_TRANSPORTS and TOO_MANY_VALUES in error.message:
        return AnswerTooLarge(server, max_values=max_values)
    is_refused = error.code == types.PARSE_ERROR
    if (is_refused and ABOVE_LIMIT in error.message) or (
        error.code == types.CONNECTION_CLOSED and error.message.startswith(_EVENT_TOO_LARGE)
    ):
        return AnswerTooLarge(server, limit=limit)
    return BadAnswer(server, _CANNOT_BE_READ) if is_refused else None
