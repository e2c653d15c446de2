"""The exceptions of the SDK. All derive from `SmcpError`, so one `except` catches them.

One class per code of the wire comes from `smcp_proto.errors` and is raised as the other side sent it (a code that this
version does not know as `SmcpError`, with that `code`); the classes defined here are the SDK's own.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from heapq import nlargest
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


class NotAGateway(CannotConnect):
    """Something else than a gateway answers at each of the URLs."""


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
    """Not even a 408 came: the SDK gave up 2 s after the time-out, or at its time where that is no whole seconds."""


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


LONGEST_NAME: Final = 128
MOST_COMPARED: Final = 20
"""Characters of a name for which a similar one is sought, and names that are compared with it in full, the likeliest
ones: 1,000 that are made for it would take more than a second of the event loop."""
LIKE: Final = 0.6
"""How similar (`difflib`) the nearest one has to be."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a sentence, which asks whether the nearest of `names` was meant; empty where none is like it."""
    if len(name) > LONGEST_NAME:
        return ""
    matcher = SequenceMatcher(b=name)

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.quick_ratio() if matcher.real_quick_ratio() >= LIKE else 0.0

    near = get_close_matches(name, nlargest(MOST_COMPARED, names, key=likeness), n=1, cutoff=LIKE)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_names(what: str, given: Iterable[str], names: Collection[str]) -> None:
    """The names of keyword arguments. Raises TypeError, as Python does, with the name of the public function."""
    for name in given:
        if name not in names:
            raise TypeError(f"{what}() got an unexpected keyword argument {name!r}{did_you_mean(name, names)}")


def unanswered_message(error: SmcpError) -> str:
    """The log message when one Computer did not answer a request that went to all of them."""
    return "may not be seen by this Agent (403)" if isinstance(error, NotAllowed) else "could not be fetched"


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
