"""Replies to `client:resources/*` and `client:completion/complete` (computer.txt, resources chapter, 5 and 7).

What a server answered stands in the envelope: its result, or its error as that of JSON-RPC. What goes wrong on the way
to it is a flat error.
"""

from collections.abc import Mapping
from typing import Any

import mcp_types as types

from smcp_bus import exact_json
from smcp_bus.dispatch import RawJson
from smcp_computer.mcp.errors import BadAnswer, RequestRefused, ServerError
from smcp_computer.resources.errors import code_of, flat, with_code
from smcp_proto.errors import TooLarge
from smcp_proto.schemas.base import JsonRpcRequest
from smcp_proto.schemas.resources import RequestEnvelope


class Envelopes:
    """Args:
    name: this Computer's.
    max_body: bytes that an answer may have on the bus.
    """

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
