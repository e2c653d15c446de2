"""JSON-RPC 2.0 messages, as the envelope of the resources events carries them in `payload`."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from smcp_proto.schemas.base import Wire, absent

RequestId = int | Annotated[str, Field(max_length=256)]


class JsonRpcRequest(Wire):
    jsonrpc: Literal["2.0"]
    id: RequestId
    method: str
    params: Any = None


class JsonRpcNotification(Wire):
    jsonrpc: Literal["2.0"]
    method: str
    params: Any = None


class JsonRpcError(Wire):
    """An error of MCP; `data.smcp_code` says which of ours it is, where it is one."""

    code: int
    message: str
    data: Any = None


class JsonRpcResponse(Wire):
    """Either a `result` or an `error`."""

    jsonrpc: Literal["2.0"]
    id: RequestId | None
    result: dict[str, Any] | None = absent()
    error: JsonRpcError | None = absent()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.result is None) == (self.error is None):
            raise ValueError("a response has either a result or an error")
        return self
