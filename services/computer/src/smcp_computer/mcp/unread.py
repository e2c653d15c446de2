"""Answers of an MCP server that are not read, as they are too large or no message: who waits for one is told at once.

Where such an answer says whose it is, a JSON-RPC error of ours takes its place. The SDK's transports over HTTP write
errors of their own for what they cannot read, which are told by their texts.
"""

import re
from dataclasses import dataclass
from typing import Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from smcp_computer.mcp.errors import AnswerTooLarge, BadAnswer, ServerError
from smcp_computer.mcp.lines import KEPT
from smcp_proto.surrogates import mended

ROOM: Final = 64 * 1024
"""Bytes that a message may have beside what it carries."""
ABOVE_LIMIT: Final = "the answer is above the limit"
"""The text of the error by which a transport of ours breaks off an answer over HTTP."""

_CANNOT_BE_READ: Final = "sent an answer that cannot be read"
_EVENT_TOO_LARGE: Final = "SSE stream failed: Server-sent event exceeded"
_NOT_PARSED: Final = ("Failed to parse JSON response", "Failed to parse SSE message")

_ID: Final = r'"id"\s*:\s*"?(?P<id>[0-9]{1,18})"?'
"""The SDK counts its requests."""
_VERSION: Final = r'"jsonrpc"\s*:\s*"2\.0"'
_OUTCOME: Final = r'"(?:result|error)"\s*:'
_ID_FIRST: Final = re.compile(rf"\s*\{{\s*(?:{_VERSION}\s*,\s*)?{_ID}\s*,\s*(?:{_VERSION}\s*,\s*)?{_OUTCOME}")
_ID_LAST: Final = re.compile(rf"{_ID}\s*(?:,\s*{_VERSION}\s*)?\}}\s*\Z")
_IS_ANSWER: Final = re.compile(rf"\s*\{{\s*(?:{_VERSION}\s*,\s*)?{_OUTCOME}")


@dataclass(frozen=True, slots=True)
class Unread:
    """Why an answer was not read: the `data` of the error in its place. Nothing that a server sends is one.

    Attributes:
        limit, size: bytes, where it is too large.
    """

    limit: int | None = None
    size: int | None = None

    def error(self, server: str) -> ServerError:
        """The error of the request that this answer was for."""
        if self.limit is None:
            return BadAnswer(server, _CANNOT_BE_READ)
        return AnswerTooLarge(server, limit=self.limit, size=self.size)


def read_message(text: str) -> tuple[types.JSONRPCMessage, bool]:
    """The message, and whether halves of surrogate pairs in it were replaced.

    Raises:
        ValueError: it is none.
    """
    try:
        return types.jsonrpc_message_adapter.validate_json(text, by_name=False), False
    except ValueError:
        return types.jsonrpc_message_adapter.validate_json(mended(text), by_name=False), True


def in_its_place(head: str, tail: str, why: Unread) -> types.JSONRPCError | None:
    """The error for who waits for the answer of which this is the beginning and the end.

    None: it is no answer, or does not say whose at its beginning or its end.
    """
    found = _ID_FIRST.match(head)
    if found is None and _IS_ANSWER.match(head) is not None:
        found = _ID_LAST.search(tail)
    if found is None:
        return None
    error = types.ErrorData(code=types.PARSE_ERROR, message="the answer was not read", data=why)
    return types.JSONRPCError(jsonrpc="2.0", id=int(found["id"]), error=error)


def read_again(refused: ValidationError) -> SessionMessage | ValidationError:
    """What the SDK's transport over HTTP could not read, as `read_message` or `in_its_place` would have it."""
    text = refused.errors(include_url=False, include_context=False)[0]["input"]
    if not isinstance(text, str):
        return refused
    try:
        return SessionMessage(read_message(text)[0])
    except ValueError:
        error = in_its_place(text[:KEPT], text[-KEPT:], Unread())
        return refused if error is None else SessionMessage(error)


def unread(server: str, error: MCPError, *, limit: int) -> ServerError | None:
    """The error of an answer that was not read; None: it was, and is an error of the server's own.

    Args:
        limit: bytes that an answer may have.
    """
    if isinstance(error.data, Unread):
        return error.data.error(server)
    if error.code == types.CONNECTION_CLOSED and error.message.startswith(_EVENT_TOO_LARGE):
        return Unread(limit=limit).error(server)
    if error.code == types.PARSE_ERROR and error.message.startswith(_NOT_PARSED):
        return Unread(limit=limit if ABOVE_LIMIT in error.message else None).error(server)
    return None
