"""What goes wrong with a resource, as it is said to Agents (computer.txt, resources chapter, 7). Pure."""

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types

from smcp_bus import exact_json
from smcp_bus.dispatch import RawJson
from smcp_computer.mcp.errors import (
    RESOURCE_NOT_FOUND,
    AnswerTooLarge,
    BadAnswer,
    NotTold,
    RequestRefused,
    ServerError,
    ServerTimedOut,
)
from smcp_proto.errors import Malformed, NotFound, SmcpError, TimedOut, TooLarge, Unavailable
from smcp_proto.schemas.base import JsonRpcRequest
from smcp_proto.schemas.resources import RequestEnvelope, SmcpCode

SUBSCRIPTIONS: Final = frozenset({"resources/subscribe", "resources/unsubscribe"})
WITH_URI: Final = SUBSCRIPTIONS | {"resources/read"}
"""Methods whose only parameter is a URI: `INVALID_PARAMS` says that there is no such resource."""


def flat(error: ServerError) -> SmcpError:
    match error:
        case NotTold():
            return not_supported(str(error), SmcpCode.SUBSCRIPTION_NOT_SUPPORTED)
        case ServerTimedOut():
            return TimedOut(str(error))
        case AnswerTooLarge():
            return too_large(error)
        case _:
            return Unavailable(str(error))


def too_large(error: AnswerTooLarge) -> TooLarge:
    known = {} if error.size is None else {"size": error.size}
    return TooLarge(str(error), details={**known, "limit": error.limit})


def not_supported(message: str, code: SmcpCode = SmcpCode.NOT_SUPPORTED) -> Malformed:
    """What is asked for is nothing that this server can do: asking again is of no use."""
    return Malformed(message, details={"smcp_code": str(code)})


def not_found(message: str, **details: str) -> NotFound:
    return NotFound(message, details={"smcp_code": str(SmcpCode.NOT_FOUND), **details})


def code_of(method: str, error: RequestRefused) -> SmcpCode | None:
    match error.code:
        case types.METHOD_NOT_FOUND:
            return SmcpCode.SUBSCRIPTION_NOT_SUPPORTED if method in SUBSCRIPTIONS else SmcpCode.NOT_SUPPORTED
        case code if code == RESOURCE_NOT_FOUND or (code == types.INVALID_PARAMS and method in WITH_URI):
            return SmcpCode.NOT_FOUND
    return None


def is_not_found(error: ServerError) -> bool:
    return isinstance(error, RequestRefused) and code_of("resources/read", error) is SmcpCode.NOT_FOUND


def with_code(data: Any, code: SmcpCode | None) -> Any:
    if code is None:
        return data
    said = data if isinstance(data, Mapping) else {} if data is None else {"data": data}
    return {**said, "smcp_code": str(code)}


class Envelopes:
    def __init__(self, name: str, *, max_body: int) -> None:
        self._name = name
        self._max_body = max_body

    def result(
        self, request: RequestEnvelope, payload: JsonRpcRequest, result: Mapping[str, Any], server: str | None
    ) -> RawJson:
        """The envelope with a result.

        Args:
            server: who gave it; None: several.

        Raises:
            TooLarge: it is larger than the bus takes.
        """
        return self._reply(request, payload, {"result": result}, server)

    def error(self, request: RequestEnvelope, payload: JsonRpcRequest, error: ServerError) -> RawJson:
        """The envelope with what a server answered in place of a result.

        Raises:
            SmcpError: it did not answer: see `resources.errors.flat`.
        """
        match error:
            case RequestRefused():
                code, message, data = error.code, error.said, with_code(error.data, code_of(payload.method, error))
            case BadAnswer():
                code, message, data = types.INTERNAL_ERROR, str(error), None
            case _:
                raise flat(error)
        said = {"code": code, "message": message} | ({} if data is None else {"data": data})
        return self._reply(request, payload, {"error": said}, error.server)

    def _reply(
        self, request: RequestEnvelope, payload: JsonRpcRequest, answer: Mapping[str, Any], server: str | None
    ) -> RawJson:
        envelope: dict[str, Any] = {"roomId": request.roomId, "computerId": self._name}
        if server is not None:
            envelope["serverId"] = server
        if request.req_id is not None:
            envelope["req_id"] = request.req_id
        body = exact_json.written({**envelope, "payload": {"jsonrpc": "2.0", "id": payload.id, **answer}})
        if len(body) > self._max_body:
            raise TooLarge("the answer is too large", details={"size": len(body), "limit": self._max_body})
        return RawJson(body)
