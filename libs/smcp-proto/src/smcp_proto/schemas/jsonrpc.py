"""JSON-RPC 2.0 messages, as the envelope of the resources events carries them in `payload`."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import PlainValidator, model_validator

from smcp_proto.schemas.base import Wire, absent

MAX_ID_LENGTH: Final = 256


def _check_id(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("neither a string nor an integer")  # noqa: TRY004 -- pydantic takes ValueErrors
    if isinstance(value, str) and len(value) > MAX_ID_LENGTH:
        raise ValueError(f"longer than {MAX_ID_LENGTH} characters")
    return value


RequestId = Annotated[int | str, PlainValidator(_check_id, json_schema_input_type=int | str)]
"""JSON-RPC's id of a request; by one function, so that an error names the field and not a member of the union."""


class JsonRpcRequest(Wire):
    """A request, which is answered by a response with the same `id` (JSON-RPC 2.0, 4)."""

    jsonrpc: Literal["2.0"]
    id: RequestId
    method: str
    params: Any = None


class JsonRpcNotification(Wire):
    """A notification: it has no `id`, and nobody answers it (JSON-RPC 2.0, 4.1)."""

    jsonrpc: Literal["2.0"]
    method: str
    params: Any = None


class JsonRpcError(Wire):
    """An error of MCP; `data.smcp_code` says which of ours it is, where it is one."""

    code: int
    message: str
    data: Any = None


def _check_one_of_both(result: object, error: object) -> None:
    if (result is None) == (error is None):
        raise ValueError("a response has either a result or an error")


class JsonRpcResponse(Wire):
    """Either a `result` or an `error`."""

    jsonrpc: Literal["2.0"]
    id: RequestId | None
    result: dict[str, Any] | None = absent()
    error: JsonRpcError | None = absent()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        _check_one_of_both(self.result, self.error)
        return self
