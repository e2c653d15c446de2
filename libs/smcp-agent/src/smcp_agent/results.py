"""The typed results of tool calls and of reads."""

import json
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from pydantic import Field

from smcp_agent.errors import BadReply
from smcp_agent.rpc import reply_of
from smcp_proto.schemas import CallToolResult
from smcp_proto.schemas import ResourceContents as WireContents
from smcp_proto.schemas.base import Wire
from smcp_proto.schemas.tools import MAX_TIMEOUT_S
from smcp_proto.tool_results import INPUT_REQUIRED

_JSON: Final = re.compile(r"\s*application/(?:[^;]*\+)?json\s*(?:;|$)", re.IGNORECASE)
"""Of MIME types."""


@dataclass(frozen=True, slots=True)
class TextContent:
    """Text of a result."""

    text: str


@dataclass(frozen=True, slots=True)
class _Media:
    data: str
    """Base64."""
    mime_type: str


class ImageContent(_Media):
    """An image in a result."""


class AudioContent(_Media):
    """Sound in a result."""


@dataclass(frozen=True, slots=True)
class ResourceContent:
    """An embedded resource: `text`, or `blob` in base64."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None


@dataclass(frozen=True, slots=True)
class LinkContent:
    """A resource that the tool names without embedding it."""

    uri: str
    name: str
    mime_type: str | None = None


@dataclass(frozen=True, slots=True)
class OtherContent:
    """A block of a kind that this version does not know, as it came."""

    block: Mapping[str, Any]


Content = TextContent | ImageContent | AudioContent | ResourceContent | LinkContent | OtherContent


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a tool that ran, or was not run and says why in `meta`.

    A tool that failed is a result with `is_error`; it is not raised.
    """

    content: tuple[Content, ...]
    structured_content: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """MCP's CallToolResult as it came over the wire; with `input_required`, and that the call was cancelled."""
    req_id: str = ""
    trace_id: str = ""
    """32 hex digits: the trace of this call, if anyone records it."""
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        """All text of the result (texts, embedded texts), one block per paragraph."""
        blocks = (block for block in self.content if isinstance(block, TextContent | ResourceContent))
        return "\n".join(block.text for block in blocks if block.text is not None)

    @property
    def timed_out(self) -> bool:
        """The call's time was up: the Computer stopped the tool, or nobody approved it in time."""
        return self.meta.get("a2c_timeout") is True

    @property
    def cancelled(self) -> bool:
        """The call was cancelled."""
        return self.meta.get("a2c_cancelled") is True

    @property
    def expired(self) -> bool:
        """The call ran before under this req_id, and its result is not kept any more."""
        return self.meta.get("a2c_result_expired") is True

    @property
    def forbidden(self) -> bool:
        """The Computer does not let Agents use this tool; it was not run."""
        return self.meta.get("a2c_forbidden") is True

    @property
    def input_required(self) -> bool:
        """The tool or its Computer elicited input, and nobody answered (`on_input`): the call was cancelled.

        The text says what was asked.
        """
        return isinstance(self.meta.get(INPUT_REQUIRED), Mapping)

    @property
    def input_requests(self) -> Mapping[str, Any]:
        """MCP's `elicitation/create` requests of a result with `input_required`, by key. Raises BadReply."""
        _input_required(self)
        requests: Mapping[str, Any] = self.meta[INPUT_REQUIRED]["requests"]
        return requests

    @property
    def input_state(self) -> str:
        """What the answers to `input_requests` are sent with. Raises BadReply."""
        return _input_required(self).state

    @property
    def input_expires_in_s(self) -> float:
        """Seconds in which the answers have to come; then the Computer cancels the call. Raises BadReply."""
        return _input_required(self).expires_in_s


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """The answer to an `InputRequest`, made by one of its methods."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class InputRequest:
    """An MCP server's elicitation during a call, or a Computer's approval request before it."""

    key: str
    """Its name among the elicitations of one call."""
    computer: str
    tool: str
    params: Mapping[str, Any]
    message: str
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the answer's content; None: there is none to give."""
    url: str | None = None
    """A page that the user should open. Show it in full, and let the user decide: nothing opens it by itself."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The parameters of MCP's ElicitRequest as they came over the wire."""

    @property
    def is_approval(self) -> bool:
        """The Computer asks whether the tool may run (`SMCP_CONFIRM=agent`)."""
        return self.key == "a2c_approval"

    def accept(self, content: Mapping[str, Any] | None = None) -> InputAnswer:
        """The user says yes, and `content` where there is a `schema`."""
        return InputAnswer("accept", None if self.url is not None else dict(content or {}))

    def decline(self) -> InputAnswer:
        """The user says no."""
        return InputAnswer("decline")

    def cancel(self) -> InputAnswer:
        """The user dismisses it."""
        return InputAnswer("cancel")


MAX_ROUNDS: Final = 33
"""How often one call may elicit: a Computer asks for its approval, and lets an MCP server elicit 32 times."""
Responses = Mapping[str, Mapping[str, Any]]
"""MCP's ElicitResult by the key of its request."""
OnInput = Callable[[InputRequest], Awaitable[InputAnswer]]


class _Elicitation(Wire):
    message: str
    requestedSchema: dict[str, Any] | None = None  # noqa: N815 -- as on the wire
    url: str | None = None


class _Asked(Wire):
    method: Literal["elicitation/create"]
    params: _Elicitation


class _InputRequired(Wire):
    requests: dict[str, _Asked]
    state: str
    expires_in_s: float = Field(300, gt=0, le=MAX_TIMEOUT_S)


def _input_required(result: CallResult) -> _InputRequired:
    return reply_of(_InputRequired, result.meta.get(INPUT_REQUIRED, {}), "the elicitation")


NOBODY_ANSWERED: Final = "Nobody answered, and the call was cancelled."
"""For a model and its user; what a program does about it, `call_tool` says (`on_input`)."""


def given_up(result: CallResult) -> CallResult:
    """The result of a call whose elicitation this program does not answer."""
    said = {"type": "text", "text": NOBODY_ANSWERED}
    raw = {**result.raw, "content": [*result.raw["content"], said]}
    return replace(result, content=(*result.content, TextContent(NOBODY_ANSWERED)), raw=raw)


async def answered(
    result: CallResult, on_input: OnInput, computer: str, tool: str, params: Mapping[str, Any]
) -> Responses:
    """The answers to a call's elicitations, asked one after the other. Raises BadReply: they cannot be read; and what
    `on_input` raises."""
    responses: dict[str, Mapping[str, Any]] = {}
    for key, raw in result.input_requests.items():
        said = _Elicitation.model_validate(raw["params"])
        request = InputRequest(key, computer, tool, params, said.message, said.requestedSchema, said.url, raw["params"])
        answer = await on_input(request)
        content = {} if answer.content is None else {"content": dict(answer.content)}
        responses[key] = {"action": answer.action, **content}
    return responses


def call_result(
    reply: dict[str, Any], *, req_id: str, trace_id: str, duration_s: float, what: str = "the result"
) -> CallResult:
    """The ack of `client:tool_call`, typed; `what` names it for people. Raises BadReply: it is not a CallToolResult."""
    wire = reply_of(CallToolResult, reply, what)
    return CallResult(
        content=tuple(content_block(block) for block in wire.content),
        structured_content=wire.structuredContent,
        is_error=wire.isError,
        meta=wire.meta or {},
        raw=reply,
        req_id=req_id,
        trace_id=trace_id,
        duration_s=duration_s,
    )


def content_block(block: Mapping[str, Any]) -> Content:
    """The typed block; what is unknown or lacks a field is kept as `OtherContent`."""
    match block:
        case {"type": "text", "text": str(text)}:
            return TextContent(text)
        case {"type": "image", "data": str(data), "mimeType": str(mime_type)}:
            return ImageContent(data, mime_type)
        case {"type": "audio", "data": str(data), "mimeType": str(mime_type)}:
            return AudioContent(data, mime_type)
        case {"type": "resource", "resource": {"uri": str(uri)}}:
            inner = block["resource"]
            return ResourceContent(uri, _str(inner, "mimeType"), _str(inner, "text"), _str(inner, "blob"))
        case {"type": "resource_link", "uri": str(uri)}:
            return LinkContent(uri, _str(block, "name") or uri, _str(block, "mimeType"))
        case _:
            return OtherContent(dict(block))


def as_text(block: Content) -> str:
    """A content block as text; what is not text is described."""
    match block:
        case TextContent(text):
            return text
        case ImageContent(data, mime_type) | AudioContent(data, mime_type):
            return f"[{mime_type}, {len(data) * 3 // 4 - data[-2:].count('=')} bytes, not shown]"
        case ResourceContent(uri=uri, text=str(text)):
            return f"{uri}\n{text}"
        case ResourceContent(uri=uri, mime_type=mime_type):
            return f"[{uri}, {mime_type or 'binary'}, not shown]"
        case LinkContent(uri, name):
            return f"[{name}]({uri})"
        case _:
            return json.dumps(dict(block.block), ensure_ascii=False)


def _str(mapping: Mapping[str, Any], key: str) -> str | None:
    value = mapping.get(key)
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class ResourceContents:
    """What `resources/read` gave: usually one content."""

    uri: str
    contents: tuple[ResourceContent, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """MCP's ReadResourceResult as it came over the wire."""

    @property
    def text(self) -> str:
        """All text, one content per paragraph; empty where there is none."""
        return "\n".join(each.text for each in self.contents if each.text is not None)

    @property
    def binary(self) -> bool:
        """Whether there are bytes and no text."""
        return bool(self.contents) and all(each.text is None for each in self.contents)

    def blob(self) -> bytes:
        """The bytes of what is binary. Raises BadReply: they are not in base64, or not in exactly one content."""
        blobs = [each.blob for each in self.contents if each.blob is not None]
        if len(blobs) != 1:
            raise BadReply(f"{self.uri} has {len(blobs)} binary contents, not one: `contents` holds them")
        try:
            return b64decode(blobs[0], validate=True)
        except ValueError as error:
            raise BadReply(f"the binary content of {self.uri} is not in base64") from error

    def json(self) -> Any:
        """The JSON that the text is. Raises BadReply: it is none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise BadReply(f"{self.uri} is not JSON: {error}") from error

    def value(self) -> Any:
        """The parsed JSON of a document (`dpe:`), unless its MIME type is another one; else the text, or the bytes.

        Raises BadReply: it is not what it is said to be.
        """
        if self.binary:
            return self.blob()
        if not self.uri.lower().startswith("dpe:"):
            return self.text
        if any(_JSON.match(each.mime_type or "") for each in self.contents):
            return self.json()
        if all(each.mime_type is None for each in self.contents):
            with suppress(BadReply):
                return self.json()
        return self.text


class _ReadResult(Wire):
    contents: list[WireContents]


def resource_contents(uri: str, result: Mapping[str, Any], what: str = "") -> ResourceContents:
    """The typed contents for MCP's ReadResourceResult; `what` names it for people. Raises BadReply: it is none."""
    contents = tuple(
        ResourceContent(each.uri, each.mimeType, each.text, each.blob)
        for each in reply_of(_ReadResult, result, what or f"the content of {uri}").contents
    )
    return ResourceContents(uri, contents, result)
