"""The errors of MCP servers, and what the wire says of them (computer.txt, resources chapter, 7).

The messages name the server and go to the Agent: they never hold the text of an exception.

An answer that is too large or cannot be read becomes an error for the request that waits for it, on every transport.
The SDK drops such answers, and their requests would wait in vain. Its HTTP transports report some of them by an error,
whose text tells why (`unread_error`); of a line that a program writes the request is looked for in what there is of it.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError
from pydantic_core import from_json

from smcp_proto.errors import Malformed, NotFound, SmcpCode, SmcpError, TimedOut, TooLarge, Unavailable
from smcp_proto.validation import mended

RESOURCE_NOT_FOUND: Final = -32002
"""JSON-RPC code of servers of MCP 2025; those of 2026 say `INVALID_PARAMS`."""

SAID_ALOUD: Final = frozenset({types.INVALID_PARAMS, types.METHOD_NOT_FOUND, RESOURCE_NOT_FOUND})
"""Codes of JSON-RPC errors whose text is about the caller's request; others may hold the text of an exception."""
SUBSCRIPTIONS: Final = frozenset({"resources/subscribe", "resources/unsubscribe"})
WITH_URI: Final = SUBSCRIPTIONS | {"resources/read"}
"""Methods whose only parameter is a URI: `INVALID_PARAMS` says that there is no such resource."""
LONGEST_TEXT: Final = 500
"""Characters of a server's text that are passed on."""

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


class ServerError(Exception):
    """Base of them all; `what` is the message without the server's name."""

    def __init__(self, server: str, what: str) -> None:
        super().__init__(f"MCP server {server!r} {what}")
        self.server = server
        self.what = what


class ServerNotRunning(ServerError):
    """It has not started, or died and is being started again. Nothing was run."""


class ServerDied(ServerError):
    """It went away before it answered. A tool may have run."""


class CallBrokenOff(ServerError):
    """The Computer ended the call, not the server. A tool may have run."""


class ServerTimedOut(ServerError):
    """It did not answer in time."""


class BadAnswer(ServerError):
    """Its answer is not a valid result."""


class AnswerTooLarge(ServerError):
    """Its answer has more bytes than it may have (`limit`), or more values, and was let go; `size` None: not known."""

    def __init__(
        self, server: str, *, limit: int | None = None, size: int | None = None, max_values: int | None = None
    ) -> None:
        most = f"{limit} bytes" if max_values is None else f"{max_values} values"
        super().__init__(server, f"sent an answer of more than {most}")
        known = {"size": size, "limit": limit, "max_values": max_values}
        self.details = {name: value for name, value in known.items() if value is not None}


class RequestRefused(ServerError):
    """It answered with a JSON-RPC error. Only an error about the request keeps the server's text and data."""

    def __init__(self, server: str, code: int, message: str, data: Any) -> None:
        aloud = code in SAID_ALOUD
        self.code = code
        self.said = message[:LONGEST_TEXT] if aloud else f"the MCP server {server!r} failed"
        self.data = data if aloud else None
        self.pages = required_pages(data) if code == types.URL_ELICITATION_REQUIRED else {}
        """The elicitations by which a server of MCP 2025 wants pages to be opened before it runs a tool, by key."""
        what = f"refused the request (MCP error {code})" + (f": {self.said}" if aloud else "")
        if code == types.HEADER_MISMATCH:  # a server of MCP 2026 misses a header, or got a wrong one
            what = "ran nothing, since the tool has changed and is being listed again; retry"
        super().__init__(server, what)


def required_pages(data: object) -> dict[str, dict[str, Any]]:
    try:
        asked = types.ElicitationRequiredErrorData.model_validate(data).elicitations
    except ValidationError:
        return {}
    params = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in asked]
    return {f"page{number}": {"method": "elicitation/create", "params": each} for number, each in enumerate(params, 1)}


class NotSubscribable(ServerError):
    """It does not announce changes, or not those of this resource."""


class ServerFailed(Exception):
    """A server cannot be started, or went away. The message is for the user of this host."""


def flat(error: ServerError) -> SmcpError:
    match error:
        case NotSubscribable():
            return not_supported(str(error), SmcpCode.SUBSCRIPTION_NOT_SUPPORTED)
        case ServerTimedOut():
            return TimedOut(str(error))
        case AnswerTooLarge():
            return too_large(error)
        case _:
            return Unavailable(str(error))


def too_large(error: AnswerTooLarge) -> TooLarge:
    return TooLarge(str(error), details=error.details)


def not_supported(message: str, code: SmcpCode = SmcpCode.NOT_SUPPORTED) -> Malformed:
    """The server does not support the request: a retry is of no use."""
    return Malformed(message, details={"smcp_code": str(code)})


def not_found(message: str, **details: str) -> NotFound:
    return NotFound(message, details={"smcp_code": str(SmcpCode.NOT_FOUND), **details})


def is_not_found(error: ServerError) -> bool:
    return isinstance(error, RequestRefused) and _code_of("resources/read", error) is SmcpCode.NOT_FOUND


def jsonrpc_error(method: str, error: ServerError) -> dict[str, Any]:
    """The error answer of a server: its own error with our code in `data`, or that it is not an answer."""
    if not isinstance(error, RequestRefused):
        return {"code": types.INTERNAL_ERROR, "message": str(error)}
    data, code = error.data, _code_of(method, error)
    if code is not None:
        said = data if isinstance(data, Mapping) else {} if data is None else {"data": data}
        data = {**said, "smcp_code": str(code)}
    return {"code": error.code, "message": error.said} | ({} if data is None else {"data": data})


def _code_of(method: str, error: RequestRefused) -> SmcpCode | None:
    match error.code:
        case types.METHOD_NOT_FOUND:
            return SmcpCode.SUBSCRIPTION_NOT_SUPPORTED if method in SUBSCRIPTIONS else SmcpCode.NOT_SUPPORTED
        case code if code == RESOURCE_NOT_FOUND or (code == types.INVALID_PARAMS and method in WITH_URI):
            return SmcpCode.NOT_FOUND
    return None


def reparsed(server: str, refused: ValidationError) -> SessionMessage | ValidationError:
    """What the SDK's transport over HTTP could not read, read once more, with what pydantic refuses replaced."""
    text = refused.errors(include_url=False, include_context=False)[0]["input"]
    message = (message_of(text) or unreadable(server, text)) if isinstance(text, str) else None
    return refused if message is None else SessionMessage(message)


def message_of(text: str) -> types.JSONRPCMessage | None:
    """None: it is none. Halves of surrogate pairs, which pydantic refuses, are replaced by U+FFFD."""
    with suppress(ValueError):
        try:
            said = from_json(text)
        except ValueError:
            said = from_json(mended(text))
        # the models are for what can be a message: of other 4 MB pydantic would make each of them, for 1.3 s
        if isinstance(said, dict) and said.get("jsonrpc") == "2.0":
            return types.jsonrpc_message_adapter.validate_python(said, by_name=False)
    return None


def unreadable(server: str, text: str) -> types.JSONRPCError | None:
    return error_for_cut_answer(text[:KEPT], text[-KEPT:], BadAnswer(server, _CANNOT_BE_READ))


def error_for_cut_answer(head: str, tail: str, why: ServerError) -> types.JSONRPCError | None:
    """The error for the request whose answer has these ends; its `data` is `why`. None: they do not name a request."""
    found = _ID_FIRST.match(head)
    if found is None and _IS_ANSWER.match(head) is not None:
        found = _ID_LAST.search(tail)
    if found is None:
        return None
    error = types.ErrorData(code=types.PARSE_ERROR, message="the answer was not read", data=why)
    return types.JSONRPCError(jsonrpc="2.0", id=int(found["id"]), error=error)


def unread_error(server: str, error: MCPError, *, limit: int, max_values: int) -> ServerError | None:
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
