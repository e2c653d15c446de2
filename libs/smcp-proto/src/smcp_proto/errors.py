"""The flat error of the wire, ``{"code": int, "message": str, "details": {...}}``, and its codes.

Code raises a `SmcpError`; the dispatcher (`smcp_bus.dispatch`) turns it into an `ErrorBody`. Everything else that
is raised becomes a 500 without its text: no text of an internal exception ever reaches a peer.
"""

from collections.abc import Collection, Mapping
from enum import IntEnum, StrEnum
from typing import Any, Final

from pydantic import BaseModel, Field

NOTHING_BEGUN: Final = 4503
"""The close code of a WebSocket whose client's calls have ended: nothing that the client sent since was begun."""

CUT_OFF: Final = "cut_off"
"""True in the `details` of a 503: the gateway has no connection to NATS, and begins nothing; another one may."""
GONE: Final = "gone"
"""True in the `details` of a 503 for a call: its Computer is gone or does not answer, so a repeat would find nobody."""


NO_ANSWER: Final = "no answer in time"
REQUEST_TOO_LARGE: Final = "the request is too large"
ANSWER_TOO_LARGE: Final = "the answer is too large"
NOT_A_MEMBER: Final = "not a member of the office"


class ErrorCode(IntEnum):
    """What went wrong, for programs."""

    MALFORMED = 400
    NOT_AUTHENTICATED = 401
    NOT_ALLOWED = 403
    NOT_FOUND = 404
    TIMED_OUT = 408
    TOO_LARGE = 413
    RATE_LIMITED = 429
    INTERNAL = 500
    UNAVAILABLE = 503
    VERSION_REFUSED = 4008
    NOT_IN_OFFICE = 4103


class SmcpCode(StrEnum):
    """What went wrong with a resource (computer.txt, resources chapter, 7)."""

    NOT_SUPPORTED = "SMCP_RESOURCE_NOT_SUPPORTED"
    NOT_FOUND = "SMCP_RESOURCE_NOT_FOUND"
    SUBSCRIPTION_NOT_SUPPORTED = "SMCP_SUBSCRIPTION_NOT_SUPPORTED"
    RATE_LIMITED = "SMCP_RATE_LIMITED"


class ErrorBody(BaseModel):
    """The error as a peer receives it."""

    code: int
    message: str
    details: dict[str, Any] = Field(default_factory=dict)


class SmcpError(Exception):
    """An error that a peer may see: its code, its message and its details go over the wire as they are."""

    code: int = ErrorCode.INTERNAL

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        cls.code = cls.code if code is None else code

    def __init__(self, message: str, *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})

    @property
    def smcp_code(self) -> str | None:
        """`details.smcp_code`, which says what went wrong with a resource (`SmcpCode`); None: nothing did."""
        said = self.details.get("smcp_code")
        return said if isinstance(said, str) else None

    def body(self) -> ErrorBody:
        """As a peer receives it."""
        return ErrorBody(code=int(self.code), message=self.message, details=self.details)


class Malformed(SmcpError, code=ErrorCode.MALFORMED):
    """The request is not what the catalog says. `details.field` names the field."""


class NotAuthenticated(SmcpError, code=ErrorCode.NOT_AUTHENTICATED):
    """The client is not authenticated: its token is missing or refused."""


class NotAllowed(SmcpError, code=ErrorCode.NOT_ALLOWED):
    """The caller's role, identity or state does not allow it; `message` says why."""


class NotFound(SmcpError, code=ErrorCode.NOT_FOUND):
    """No such Computer in the caller's office; the answer does not reveal one in another office."""


class TimedOut(SmcpError, code=ErrorCode.TIMED_OUT):
    """No answer came within the time that the request gave. What was asked is cancelled."""


class TooLarge(SmcpError, code=ErrorCode.TOO_LARGE):
    """A body above a limit. `details.limit` and, where known, `details.size` are in bytes."""

    def __str__(self) -> str:
        match self.details:
            case {"size": int(size), "limit": int(limit)} if str(limit) not in self.message:
                return f"{self.message}: {size} bytes, the limit is {limit}"
        return self.message


class RateLimited(SmcpError, code=ErrorCode.RATE_LIMITED):
    """Too many requests. `details.retry_after_s` says, where it is known, after how many seconds to ask again."""


class Internal(SmcpError, code=ErrorCode.INTERNAL):
    """A fault of ours. The answer reveals no cause; the log of the process has it."""


class Unavailable(SmcpError, code=ErrorCode.UNAVAILABLE):
    """Not now. `details.may_have_run` is true where a call may have run although no answer came."""


class VersionRefused(SmcpError, code=ErrorCode.VERSION_REFUSED):
    """The `a2c_version` of a connection is none that is spoken here."""


class NotInOffice(SmcpError, code=ErrorCode.NOT_IN_OFFICE):
    """The caller is in no office, or not in the one that it names."""


def no_such_computer(computer: str, hint: str = "", /, **details: object) -> NotFound:
    """The same words whether it does not exist, has left or is in another office. `hint`: which one may be meant."""
    said = f"no such Computer in this office: {computer!r}{hint}"
    return NotFound(said, details={"computer": computer, **details})


MAX_SUBSCRIPTIONS: Final = 1000
"""Subscriptions that one Agent may have at one Computer; above it 429."""


def too_many_subscriptions(limit: int) -> RateLimited:
    """The 429 for an Agent that has as many as it may have."""
    details = {"smcp_code": str(SmcpCode.RATE_LIMITED), "limit": limit}
    return RateLimited("too many subscriptions at this Computer; end some of them first", details=details)


ERRORS: Mapping[int, type[SmcpError]] = {int(kind.code): kind for kind in SmcpError.__subclasses__()}
"""The class for each code: what a client raises for an error it received."""


def error_of(code: int, message: str, details: Mapping[str, Any]) -> SmcpError:
    """The exception for a flat error that another process sent; it keeps a code that is not known here."""
    error = ERRORS.get(code, SmcpError)(message, details=details)
    if code not in ERRORS:
        error.code = code
    return error


def flat_error(data: object, expected: Collection[str] = ()) -> SmcpError | None:
    """The exception for a flat error; None if `data` is none. What has one of the `expected` fields is a reply."""
    if not isinstance(data, dict) or any(field in data for field in expected):
        return None
    code, message, details = data.get("code"), data.get("message"), data.get("details")
    if not isinstance(code, int) or isinstance(code, bool) or not isinstance(message, str):
        return None
    return error_of(code, message, details if isinstance(details, dict) else {})


LONGEST_ERROR: Final = 16 * 1024
"""The largest error of a Computer in bytes. Errors of our Computers are below 2 KiB."""
_COMPUTER_CODES: Final = frozenset(
    {*ErrorCode, *range(4006, 4020)} - {ErrorCode.NOT_AUTHENTICATED, ErrorCode.NOT_IN_OFFICE}
)
"""The codes that a Computer may send: those of published Computers, and ours except those about the connection."""
_GATEWAY_DETAILS: Final = (CUT_OFF, "moving", "quota")
"""Details that a Computer may not send: clients leave the gateway, wait or repeat the request because of them."""


def error_of_computer(code: int, message: str, details: Mapping[str, Any], size: int) -> SmcpError:
    """The exception for an error that a Computer sent in `size` bytes, as an Agent may see it: a Computer may be
    hostile. Too long an error loses its text, and one of another code becomes a 500."""
    if size > LONGEST_ERROR:
        return Internal(f"the Computer sent an error of {size} bytes, which is not passed on")
    own = {name: value for name, value in details.items() if name not in _GATEWAY_DETAILS}
    return error_of(code if code in _COMPUTER_CODES else ErrorCode.INTERNAL, message, own)


def refusal(error: ErrorBody) -> str:
    """The "why" of `[false, why]`: the code, a space, the message."""
    return f"{error.code} {error.message}"


def read_refusal(why: str) -> tuple[int | None, str]:
    """Code and message of a "why"; one that another server wrote has no code."""
    known = {str(code): code for code in ERRORS}
    code, space, message = why.partition(" ")
    return (known[code], message) if space and code in known else (None, why)
