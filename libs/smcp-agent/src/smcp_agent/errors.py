"""The exceptions of the SDK. All derive from `SmcpError`, so one `except` catches them.

One class per code of the wire comes from `smcp_proto.errors` and is raised as the other side sent it (a code that this
version does not know as `SmcpError`, with that `code`); the classes defined here are the SDK's own.
"""

from collections.abc import Mapping
from typing import Any, Final

from smcp_proto.errors import (
    ErrorCode as ErrorCode,
    Internal as Internal,
    Malformed as Malformed,
    NotAllowed as NotAllowed,
    NotAuthenticated as NotAuthenticated,
    NotFound as NotFound,
    NotInOffice as NotInOffice,
    RateLimited as RateLimited,
    SmcpCode,
    SmcpError as SmcpError,
    TimedOut as TimedOut,
    TooLarge as TooLarge,
    Unavailable as Unavailable,
    VersionRefused as VersionRefused,
    flat_error as flat_error,
)

_CODES: Final[Mapping[str, ErrorCode]] = {
    SmcpCode.NOT_FOUND: ErrorCode.NOT_FOUND,
    SmcpCode.RATE_LIMITED: ErrorCode.RATE_LIMITED,
}


class CannotConnect(Unavailable):
    """None of the URLs could be connected to. `details.urls` says why, by URL."""


class TokenUnavailable(Unavailable):
    """The token provider failed; its own exception is the cause."""


class JoinRefused(NotAllowed):
    """The office did not take the Agent in; `message` says why. There is one Agent per office.

    If another one has the seat, `details` has its name (`holder`) and the time of its join (`since`, RFC 3339). If the
    token does not allow the join, `details` has `field`: `office_id`, `role` or `name`.
    """


class ConnectionLost(Unavailable):
    """The connection broke and was not back within the request's time. `may_have_run`: the request was sent."""

    def __init__(self, message: str, *, may_have_run: bool) -> None:
        super().__init__(message, details={"may_have_run": may_have_run})
        self.may_have_run = may_have_run


class NoAnswer(TimedOut):
    """No reply, not even 408, within the timeout plus 2 s; a timeout that is not whole seconds gets no addition."""


class Closed(Unavailable):
    """The SmcpAgent was used before it was opened or after it was closed."""


class BadReply(Internal):
    """The other side's reply is not what the protocol says."""


class McpError(SmcpError):
    """A request about resources was answered with a JSON-RPC error: an MCP server's own, or its Computer's about it.

    `rpc_code`, `message` and `data` are what was answered; `smcp_code` is the protocol's error, if any (computer.txt,
    resources chapter, 7). `code` is 404 for SMCP_RESOURCE_NOT_FOUND, 429 for SMCP_RATE_LIMITED, else 500.
    """

    def __init__(self, message: str, *, rpc_code: int, data: Any = None) -> None:
        smcp_code = data.get("smcp_code") if isinstance(data, Mapping) else None
        details = {"rpc_code": rpc_code} | ({} if data is None else {"data": data})
        super().__init__(message, details=details | ({"smcp_code": smcp_code} if isinstance(smcp_code, str) else {}))
        self.rpc_code = rpc_code
        self.data = data
        self.code = _CODES.get(self.smcp_code or "", ErrorCode.INTERNAL)


def not_open() -> Closed:
    """The error for an `SmcpAgent` that is not open."""
    return Closed("this SmcpAgent is not open: use it inside its `async with`, or after `open()`")


def without_traceback(error: SmcpError) -> SmcpError:
    """A copy, to be raised again: one that was raised has a traceback, and may have got more `details`."""
    kind = type(error)
    again = kind.__new__(kind, *error.args)
    again.__dict__.update(error.__dict__)
    again.details = dict(error.details)
    return again


def retry_after(error: SmcpError) -> float:
    """Seconds, 3600 at most, after which the other side wants to be asked again; 0: it does not say."""
    wait = error.details.get("retry_after_s")
    return min(wait, 3600.0) if isinstance(wait, int | float) and wait > 0 else 0.0


def may_have_run(error: SmcpError) -> bool:
    """Whether a tool may have run although the call ended with this error."""
    return error.details.get("may_have_run") is True or isinstance(error, TimedOut)
