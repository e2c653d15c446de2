"""Tools of many Computers as tools of an LLM API: their names and schemas there, and the calls that a model makes.

Both APIs want names of `[A-Za-z0-9_-]{1,64}` that are unique in the request. A tool keeps its own name where that is
legal and no other Computer has it; otherwise the name is qualified, `<computer>__<tool>`; what is still not
legal or not unique gets a hash of the pair. A name depends on the set of tools only, not on their order.
"""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final, Literal

from pydantic import ValidationError

from smcp_agent.cache import ToolCache
from smcp_agent.errors import Malformed, NotFound, SmcpError, may_have_run
from smcp_agent.results import (
    AudioContent,
    CallResult,
    Content,
    ImageContent,
    LinkContent,
    ResourceContent,
    TextContent,
)
from smcp_proto.schemas import SMCPTool, ToolMeta

DEFAULT_TIMEOUT_S: Final = 60
"""How long a tool may take where the application does not say: a model and its user wait."""
MAX_NAME: Final = 64
ANTHROPIC_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
NOTHING: Final = "(the tool returned nothing)"
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")

OpenAITool = dict[str, Any]
AnthropicTool = dict[str, Any]
OpenAIApi = Literal["chat", "responses"]


class ModelMethods(ABC):
    """What `SmcpAgent` can do for a model.

    The names of the latest list win. An older name, which a model may still use in a conversation that began before the
    room changed, keeps its meaning as long as the latest list does not use it otherwise.
    """

    _tools: ToolCache
    _given: dict[str, tuple[str, str]]
    """Computer and tool, by the name that a model was given."""

    @abstractmethod
    async def call_tool(
        self, computer: str, tool: str, params: Mapping[str, Any] | None = None, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> CallResult:
        """Run a tool of a Computer. Raises SmcpError."""

    async def openai_tools(
        self, api: OpenAIApi = "chat", *, where: Callable[[SMCPTool], bool] = lambda _: True
    ) -> list[OpenAITool]:
        """The tools of all Computers for OpenAI's Chat Completions, or with `api="responses"` for its Responses API.

        A Computer whose tools could not be fetched so far is left out. `where` chooses tools, for
        example by their tags: `lambda tool: "browser" in tags(tool)`.
        """
        return [openai_tool(named, api) for named in await self._named_tools() if where(named.tool)]

    async def anthropic_tools(self, *, where: Callable[[SMCPTool], bool] = lambda _: True) -> list[AnthropicTool]:
        """The tools of all Computers for Anthropic's Messages API, as `openai_tools`."""
        return [anthropic_tool(named) for named in await self._named_tools() if where(named.tool)]

    async def run_openai_tool_call(self, tool_call: Any, *, timeout: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
        """Run a model's tool call: a dict or an object of OpenAI's SDK, of either API. Returns the message to append.

        Errors become a message that the model can read; only cancellation is raised.
        """
        if _field(tool_call, "type") == "function_call":
            result = await self._run(_field(tool_call, "name"), _field(tool_call, "arguments"), timeout)
            call_id = _field(tool_call, "call_id")
            return {"type": "function_call_output", "call_id": call_id, "output": openai_output(result)}
        function = _field(tool_call, "function")
        result = await self._run(_field(function, "name"), _field(function, "arguments"), timeout)
        return {"role": "tool", "tool_call_id": _field(tool_call, "id"), "content": openai_output(result)}

    async def run_anthropic_tool_use(self, block: Any, *, timeout: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
        """Run a `tool_use` block (a dict or an object of Anthropic's SDK); returns the `tool_result` block.

        Errors become a result with `is_error`; only cancellation is raised.
        """
        result = await self._run(_field(block, "name"), _field(block, "input"), timeout)
        return {
            "type": "tool_result",
            "tool_use_id": _field(block, "id"),
            "content": anthropic_output(result),
            "is_error": result.is_error,
        }

    async def _named_tools(self) -> "list[NamedTool]":
        named = name_tools(await self._tools.all())
        self._given.update({each.name: (each.computer, each.tool.name) for each in named})
        return named

    async def _run(self, name: object, arguments: object, timeout: float) -> CallResult:
        try:
            if not self._given:  # a model may call tools that another run of the application showed it
                await self._named_tools()
            found = self._given.get(name) if isinstance(name, str) else None
            if found is None:
                raise NotFound(f"there is no tool {name!r}")
            return await self.call_tool(*found, _arguments(arguments), timeout=timeout)
        except SmcpError as error:
            ran = " (the tool may have run nevertheless)" if may_have_run(error) else ""
            text = f"Error {int(error.code)}: {error.message}{ran}"
            return CallResult(content=(TextContent(text),), is_error=True)


def tool_meta(tool: SMCPTool) -> ToolMeta:
    """What the Computer's configuration says of a tool (`a2c_tool_meta`); empty where it says nothing readable."""
    said = (tool.meta or {}).get("a2c_tool_meta")
    try:
        return ToolMeta.model_validate_json(said) if isinstance(said, str) else ToolMeta()
    except ValidationError:
        return ToolMeta()


def tags(tool: SMCPTool) -> tuple[str, ...]:
    """The tags that the Computer's configuration gives to a tool."""
    return tuple(tool_meta(tool).tags or ())


def auto_apply(tool: SMCPTool) -> bool | None:
    """Whether the tool runs without asking the Computer's user. False: asked each time; None: the Computer decides."""
    return tool_meta(tool).auto_apply


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool of a Computer and what a model calls it."""

    name: str
    computer: str
    tool: SMCPTool

    @property
    def description(self) -> str:
        """The tool's own; it says whose tool it is where the name alone is not the tool's own."""
        if self.name == self.tool.name:
            return self.tool.description
        return f"[{self.computer}: {self.tool.name}] {self.tool.description}".rstrip()


def name_tools(tools: Mapping[str, Iterable[SMCPTool]]) -> list[NamedTool]:
    """Name the tools of the Computers (by their names); sorted by Computer, then by tool."""
    pairs = {(computer, tool.name): tool for computer, listed in tools.items() for tool in listed}
    names: dict[tuple[str, str], str] = {}
    steps: tuple[Callable[[str, str], str], ...] = (
        lambda computer, tool: _legal(tool, (computer, tool)),
        lambda computer, tool: _legal(f"{computer}__{tool}", (computer, tool)),
        *(partial(_hashed, digits=digits) for digits in range(8, 64, 8)),
    )
    for name_of in steps:
        wanted = {pair: name_of(*pair) for pair in pairs if pair not in names}
        taken = Counter(wanted.values()) + Counter(names.values())
        names.update({pair: name for pair, name in wanted.items() if taken[name] == 1})
    return [NamedTool(names[pair], pair[0], pairs[pair]) for pair in sorted(names)]


def openai_tool(named: NamedTool, api: OpenAIApi = "chat") -> OpenAITool:
    """An entry of `tools` for OpenAI's Chat Completions, or for its Responses API."""
    schema = object_schema(named.tool.params_schema)
    function = {"name": named.name, "description": named.description, "parameters": schema}
    if api == "responses":
        # strict is on by default there, and refuses most schemas of MCP servers
        return {"type": "function", **function, "strict": False}
    return {"type": "function", "function": function}


def anthropic_tool(named: NamedTool) -> AnthropicTool:
    """An entry of `tools` for Anthropic's Messages API."""
    schema = object_schema(named.tool.params_schema)
    return {"name": named.name, "description": named.description, "input_schema": schema}


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with `type` and `properties`, which MCP servers may leave out and the APIs insist on."""
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


def _legal(name: str, pair: tuple[str, str]) -> str:
    return name if 1 <= len(name) <= MAX_NAME and not _ILLEGAL.search(name) else _with_digest(name, pair)


def _hashed(computer: str, tool: str, *, digits: int) -> str:
    return _with_digest(f"{computer}__{tool}", (computer, tool), digits)


def _with_digest(readable: str, pair: tuple[str, str], digits: int = 8) -> str:
    digest = sha256("\0".join(pair).encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return f"{_ILLEGAL.sub('_', readable)[: MAX_NAME - digits - 1]}_{digest}"


def _arguments(arguments: object) -> Mapping[str, Any]:
    """A tool call's arguments: an object, or the JSON text of one; empty text is no arguments. Raises Malformed."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise Malformed(f"the arguments are not JSON: {error}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise Malformed("the arguments are no JSON object")
    return arguments


def _field(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def openai_output(result: CallResult) -> str:
    """The result as text, which is all that OpenAI's tool messages take; other contents are described."""
    texts = [text for block in result.content if (text := as_text(block))]
    if not texts and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(texts) or NOTHING
    return f"The tool failed: {text}" if result.is_error and not text.startswith("Error") else text


def anthropic_output(result: CallResult) -> list[dict[str, Any]]:
    """The result as content blocks: texts and images as they are, other contents described."""
    blocks: list[dict[str, Any]] = []
    for block in result.content:
        if isinstance(block, ImageContent) and block.mime_type in ANTHROPIC_IMAGES:
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            blocks.append({"type": "image", "source": source})
        elif text := as_text(block):
            blocks.append({"type": "text", "text": text})
    if not blocks and result.structured_content is not None:
        blocks.append({"type": "text", "text": json.dumps(result.structured_content, ensure_ascii=False)})
    return blocks or [{"type": "text", "text": NOTHING}]


def as_text(block: Content) -> str:
    """A content block as text; what is not text is described."""
    match block:
        case TextContent(text):
            return text
        case ImageContent(data, mime_type) | AudioContent(data, mime_type):
            return f"[{mime_type}, {len(data) * 3 // 4} bytes, not shown]"
        case ResourceContent(uri=uri, text=str(text)):
            return f"{uri}\n{text}"
        case ResourceContent(uri=uri, mime_type=mime_type):
            return f"[{uri}, {mime_type or 'binary'}, not shown]"
        case LinkContent(uri, name):
            return f"[{name}]({uri})"
        case _:
            return json.dumps(dict(block.block), ensure_ascii=False)
