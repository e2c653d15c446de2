"""Maps errors of MCP servers to the errors of the wire (computer.txt, resources chapter, 7). Pure."""

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types

from smcp_computer.mcp.errors import (
    RESOURCE_NOT_FOUND,
    AnswerTooLarge,
    NotSubscribable,
    RequestRefused,
    ServerError,
    ServerTimedOut,
)
from smcp_proto.errors import Malformed, NotFound, SmcpCode, SmcpError, TimedOut, TooLarge, Unavailable

SUBSCRIPTIONS: Final = frozenset({"resources/subscribe", "resources/unsubscribe"})
WITH_URI: Final = SUBSCRIPTIONS | {"resources/read"}
"""Methods whose only parameter is a URI: `INVALID_PARAMS` says that there is no such resource."""


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
    known = {"size": error.size, "limit": error.limit, "max_values": error.max_values}
    return TooLarge(str(error), details={name: value for name, value in known.items() if value is not None})


def bad_field(field: str, reason: object) -> Malformed:
    return Malformed(f"{field}: {reason}", details={"field": field, "reason": str(reason)})


def not_supported(message: str, code: SmcpCode = SmcpCode.NOT_SUPPORTED) -> Malformed:
    """The server does not support the request: a retry is of no use."""
    return Malformed(message, details={"smcp_code": str(code)})


def not_found(message: str, **details: str) -> NotFound:
    return NotFound(message, details={"smcp_code": str(SmcpCode.NOT_FOUND), **details})


def is_not_found(error: ServerError) -> bool:
    return isinstance(error, RequestRefused) and _code_of("resources/read", error) is SmcpCode.NOT_FOUND


def jsonrpc_error(method: str, error: ServerError) -> dict[str, Any]:
    """The error answer of a server: its own error with our code in `data`, or that it is no answer."""
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
