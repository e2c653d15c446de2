"""Resources of MCP through the office (computer.txt, resources chapter), completion, and prompts, which no page has:
every event is an envelope that says whom it concerns, round a JSON-RPC message of MCP.
"""

from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field

from smcp_proto.member_names import Name
from smcp_proto.schemas.base import (
    JsonRpcNotification,
    JsonRpcRequest,
    JsonRpcResponse,
    ReqId,
    ServerName,
    Wire,
    absent,
)

MAX_CURSOR: Final = 8192
"""Characters."""

MISSED: Final = "a2c_missed"
"""An extra field of `notify:resources/list_changed`, true: the Agent may have missed updates, and its subscriptions at
the Computer may have ended. It is to subscribe again."""

Uri = Annotated[str, Field(strict=True, min_length=1, max_length=8192)]
Cursor = Annotated[str, Field(strict=True, max_length=MAX_CURSOR)]
PromptName = Annotated[str, Field(strict=True, min_length=1, max_length=512)]


class Envelope(Wire):
    """The addressee or sender: an office, a Computer in it, one of its MCP servers."""

    roomId: Name  # noqa: N815 -- as on the wire
    computerId: Name | None = absent()  # noqa: N815
    serverId: ServerName | None = None  # noqa: N815
    """None: the Computer finds out itself."""


class RequestEnvelope(Envelope):
    """An envelope that an Agent sends; `agent` and `req_id` may stand in it as in every other request."""

    agent: Name | None = absent()
    req_id: ReqId | None = absent()
    traceparent: str | None = absent()
    event: str | None = absent()
    """The page's example repeats the event's name here; it says nothing that the event itself does not."""


class AddressedEnvelope(RequestEnvelope):
    """A request to one Computer."""

    computerId: Name  # noqa: N815 -- here it has to be there


def _not_yet(value: object) -> object:
    raise ValueError("not supported yet")


Reserved = Annotated[Any, AfterValidator(_not_yet)]
"""A field that is kept for later: refused by its name, not silently ignored."""


class Params(Wire):
    """Parameters of an MCP request (computer.txt, resources chapter, 8, says what is reserved)."""

    range: Reserved = absent()
    """Reading a part of a resource."""
    uris: Reserved = absent()
    """Subscribing to several resources at once."""


class ListParams(Params):
    """`cursor` is the `nextCursor` of the page before; absent: the first page."""

    cursor: Cursor | None = absent()


class UriParams(Params):
    uri: Uri


_Method = TypeVar("_Method", bound=str)
_Params = TypeVar("_Params")


class _Payload(JsonRpcRequest, Generic[_Method, _Params]):
    """MCP's request of this method (computer.txt, resources chapter, 5)."""

    method: _Method
    params: _Params


class _ListPayload(_Payload[_Method, ListParams | None], Generic[_Method]):
    """MCP's request for a page of a list (computer.txt, resources chapter, 5)."""

    params: ListParams | None = absent()


class ListResourcesReq(RequestEnvelope):
    """`client:resources/list`. Without `computerId`: over all Computers of the office."""

    payload: _ListPayload[Literal["resources/list"]]


class ListResourceTemplatesReq(RequestEnvelope):
    """`client:resources/templates/list`. Without `computerId`: over all Computers of the office."""

    payload: _ListPayload[Literal["resources/templates/list"]]


class ReadResourceReq(AddressedEnvelope):
    payload: _Payload[Literal["resources/read"], UriParams]


class SubscribeResourceReq(AddressedEnvelope):
    payload: _Payload[Literal["resources/subscribe"], UriParams]


class UnsubscribeResourceReq(AddressedEnvelope):
    payload: _Payload[Literal["resources/unsubscribe"], UriParams]


class ResourceRet(Envelope):
    """The reply to `client:resources/*`, `client:completion/complete` and `client:prompts/*`: the envelope with the
    response in it."""

    payload: JsonRpcResponse


class Resource(Wire):
    uri: str
    name: str
    title: str | None = absent()
    description: str | None = absent()
    mimeType: str | None = absent()  # noqa: N815


class ResourceContents(Wire):
    """An item of `resources/read`: text, or a blob in Base64."""

    uri: str
    name: str | None = absent()
    title: str | None = absent()
    mimeType: str | None = absent()  # noqa: N815
    text: str | None = absent()
    blob: str | None = absent()


class ResourceTemplate(Wire):
    uriTemplate: str  # noqa: N815
    name: str
    title: str | None = absent()
    description: str | None = absent()
    mimeType: str | None = absent()  # noqa: N815


class ListResourcesResult(Wire):
    """A page of `resources/list`. Without `nextCursor` it is the last one."""

    resources: list[Resource]
    nextCursor: str | None = absent()  # noqa: N815


class ListChangedPayload(JsonRpcNotification):
    """MCP's notification that the list of resources is another one (computer.txt, resources chapter, 5)."""

    method: Literal["notifications/resources/list_changed"]


class UpdatedParams(Wire):
    uri: Uri
    title: str | None = absent()


class UpdatedPayload(JsonRpcNotification):
    """MCP's notification that a resource changed (computer.txt, resources chapter, 5)."""

    method: Literal["notifications/resources/updated"]
    params: UpdatedParams


class ResourceListChangedNotification(Envelope):
    """`notify:resources/list_changed`; a Computer on Socket.IO says it upstream under the same name."""

    payload: ListChangedPayload


class ResourceUpdatedNotification(Envelope):
    """`notify:resources/updated`; a Computer on Socket.IO says it upstream under the same name."""

    agent: Name | None = absent()
    """The subscriber: only that Agent receives it. Absent: the office's Agent receives it."""
    payload: UpdatedPayload


class CompletionReference(Wire):
    """The target of a completion: a resource template by its `uri`, or a prompt by its `name`."""

    type: Literal["ref/resource", "ref/prompt"]
    uri: str | None = absent()
    name: str | None = absent()


class CompletionArgument(Wire):
    name: str
    value: str


class CompletionContext(Wire):
    arguments: dict[str, str] | None = absent()
    """The values of earlier arguments."""


class CompletionParams(Wire):
    ref: CompletionReference
    argument: CompletionArgument
    context: CompletionContext | None = absent()


class CompleteReq(AddressedEnvelope):
    payload: _Payload[Literal["completion/complete"], CompletionParams]


class Completion(Wire):
    """At most 100 values; `total` counts those that there are, and `hasMore` says that some are left out."""

    values: list[str]
    total: int | None = absent()
    hasMore: bool | None = absent()  # noqa: N815


class CompleteResult(Wire):
    """MCP's answer to `completion/complete`. `meta` is what the MCP server said in `_meta`."""

    completion: Completion
    meta: dict[str, Any] | None = absent()


class GetPromptParams(Wire):
    name: PromptName
    arguments: dict[str, str] | None = absent()


class ListPromptsReq(AddressedEnvelope):
    payload: _ListPayload[Literal["prompts/list"]]


class GetPromptReq(AddressedEnvelope):
    payload: _Payload[Literal["prompts/get"], GetPromptParams]


class Prompt(Wire):
    name: str
    title: str | None = absent()
    description: str | None = absent()
    arguments: list[dict[str, Any]] | None = absent()
    serverId: ServerName | None = absent()  # noqa: N815


class PromptMessage(Wire):
    """A message of a prompt: who says it (`user` or `assistant`), and one content, as tools give it."""

    role: str
    content: dict[str, Any]


class GetPromptResult(Wire):
    """MCP's answer to `prompts/get`. `meta` is what the MCP server said in `_meta`."""

    messages: list[PromptMessage]
    description: str | None = absent()
    meta: dict[str, Any] | None = absent()
