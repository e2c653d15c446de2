"""The one table that turns what a handler raises into what a peer may read."""

import logging

from smcp_bus import errors as bus_errors
from smcp_proto.errors import CUT_OFF, ErrorBody, Internal, SmcpError, TimedOut, TooLarge, Unavailable

_log = logging.getLogger("smcp_bus.door")


def to_smcp_error(error: Exception) -> SmcpError:
    """The error for the peer. What is not known here is logged with its text, and is a 500 without it."""
    match error:
        case SmcpError():
            return error
        case bus_errors.BodyTooLarge(size=size, limit=limit):
            return TooLarge("the body is too large", details={"size": size, "limit": limit})
        case bus_errors.NoResponder():
            return Unavailable("not available now", details={"may_have_run": False})
        case bus_errors.NotConnected():
            return Unavailable("not available now", details={"may_have_run": False, CUT_OFF: True})
        case bus_errors.ConnectionLost() | bus_errors.TransferFailed():
            return Unavailable("the connection broke before the answer came", details={"may_have_run": True})
        case bus_errors.RequestTimedOut():
            return TimedOut("no answer in time")
        case _:
            _log.error("a handler failed", exc_info=error)
            return Internal("internal error")


def error_body(error: Exception) -> ErrorBody:
    """What a peer may read of what a handler raised."""
    return to_smcp_error(error).body()
