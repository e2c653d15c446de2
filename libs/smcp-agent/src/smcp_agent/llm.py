"""Tools of many Computers as tools of an LLM API: their names there, and their schemas. Pure.

Both APIs want names of `[A-Za-z0-9_-]{1,64}` that are unique in the request. A tool keeps its own name where that is
legal and no other Computer has it; otherwise the name is qualified, `<computer>__<tool>`; what is still not
legal or not unique gets a hash of the pair. A name depends on the set of tools only, not on their order.
"""

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, Protocol

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
from smcp_proto.schemas import SMCPTool

MAX_NAME: Final = 64
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS: Final = 8

OpenAITool = dict[str, Any]
AnthropicTool = dict[str, Any]
OpenAIApi = Literal["chat", "responses"]


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
    steps: tuple[Callable[[str, str], str], ...] = (_plain, _qualified, _hashed)
    for name_of in steps:
        open_pairs = [pair for pair in sorted(pairs) if pair not in names]
        wanted = {pair: name_of(*pair) for pair in open_pairs}
        taken = Counter(wanted.values()) + Counter(names.values())
        names.update({pair: name for pair, name in wanted.items() if taken[name] == 1})
    for pair in sorted(pairs):
        digits = _DIGITS
        while pair not in names:
            digits += _DIGITS
            name = _with_digest("tool", pair, digits)
            if name not in names.values():
                names[pair] = name
    return [NamedTool(names[pair], pair[0], pairs[pair]) for pair in sorted(pairs)]


def openai_tool(named: NamedTool, api: OpenAIApi = "chat") -> OpenAITool:
    """An entry of `tools` for OpenAI's Chat Completions, or for its Responses API."""
    function = {
        "name": named.name,
        "description": named.description,
        "parameters": object_schema(named.tool.params_schema),
    }
    if api == "responses":
        # strict is on by default there, and refuses most schemas of MCP servers
        return {"type": "function", **function, "strict": False}
    return {"type": "function", "function": function}


def anthropic_tool(named: NamedTool) -> AnthropicTool:
    """An entry of `tools` for Anthropic's Messages API."""
    return {
        "name": named.name,
        "description": named.description,
        "input_schema": object_schema(named.tool.params_schema),
    }


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with `type` and `properties`, which MCP servers may leave out and the APIs insist on."""
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


class ToolBook:
    """Which tool a name meant when it was given to a model.

    The names of the latest list win; an older name, which a model may still use in a conversation that began before
    the room changed, keeps its meaning as long as the latest list does not use it otherwise.
    """

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, str]] = {}

    @property
    def empty(self) -> bool:
        """Whether no name was given yet."""
        return not self._given

    def give(self, named: Sequence[NamedTool]) -> None:
        """Remember what the names of the latest list mean."""
        self._given.update({each.name: (each.computer, each.tool.name) for each in named})

    def find(self, name: str) -> tuple[str, str] | None:
        """The Computer and its tool; None for a name that was never given."""
        return self._given.get(name)


def _plain(computer: str, tool: str) -> str:
    return tool if _legal(tool) else _with_digest(tool, (computer, tool))


def _qualified(computer: str, tool: str) -> str:
    name = f"{computer}__{tool}"
    return name if _legal(name) else _with_digest(name, (computer, tool))


def _hashed(computer: str, tool: str) -> str:
    return _with_digest(f"{computer}__{tool}", (computer, tool))


def _legal(name: str) -> bool:
    return 1 <= len(name) <= MAX_NAME and not _ILLEGAL.search(name)


def _with_digest(readable: str, pair: tuple[str, str], digits: int = _DIGITS) -> str:
    digest = sha256("\0".join(pair).encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    head = _ILLEGAL.sub("_", readable)[: MAX_NAME - len(digest) - 1]
    return f"{head}_{digest}"


ANTHROPIC_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
NOTHING: Final = "(the tool returned nothing)"


class CallTool(Protocol):
    """`SmcpAgent.call_tool`, as far as a model's calls need it. `timeout` is in seconds."""

    def __call__(self, computer: str, tool: str, params: Mapping[str, Any], *, timeout: float) -> Awaitable[CallResult]:
        """Run the tool of that Computer. Raises SmcpError: as `SmcpAgent.call_tool`."""


async def run(book: ToolBook, call: CallTool, name: object, arguments: object, timeout: float) -> CallResult:
    """Run a model's tool call. What goes wrong, the model's own mistakes included, becomes a result it can read."""
    try:
        found = book.find(name) if isinstance(name, str) else None
        if found is None:
            raise NotFound(f"there is no tool {name!r}")
        computer, tool = found
        return await call(computer, tool, parse_arguments(arguments), timeout=timeout)
    except SmcpError as error:
        return CallResult(content=(TextContent(explain(error)),), is_error=True)


async def run_openai(book: ToolBook, call: CallTool, tool_call: Any, timeout: float) -> dict[str, Any]:
    """Run a tool call of Chat Completions, or a `function_call` item of the Responses API.

    Returns the message, or the `function_call_output` item, to append.
    """
    if field_of(tool_call, "type") == "function_call":
        name, arguments = field_of(tool_call, "name"), field_of(tool_call, "arguments")
        result = await run(book, call, name, arguments, timeout)
        call_id = field_of(tool_call, "call_id")
        return {"type": "function_call_output", "call_id": call_id, "output": openai_output(result)}
    function = field_of(tool_call, "function")
    name, arguments = field_of(function, "name"), field_of(function, "arguments")
    result = await run(book, call, name, arguments, timeout)
    return {"role": "tool", "tool_call_id": field_of(tool_call, "id"), "content": openai_output(result)}


async def run_anthropic(book: ToolBook, call: CallTool, block: Any, timeout: float) -> dict[str, Any]:
    """Run a `tool_use` block of Anthropic's Messages API; returns the `tool_result` block to append."""
    result = await run(book, call, field_of(block, "name"), field_of(block, "input"), timeout)
    return {
        "type": "tool_result",
        "tool_use_id": field_of(block, "id"),
        "content": anthropic_output(result),
        "is_error": result.is_error,
    }


def parse_arguments(arguments: object) -> Mapping[str, Any]:
    """A tool call's arguments: an object, or the JSON text of one; empty text is no arguments.

    Raises:
        Malformed: they are neither.
    """
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


def explain(error: SmcpError) -> str:
    """An error as a text for a model, with what it needs to decide whether to try again."""
    text = f"Error {int(error.code)}: {error.message}"
    if may_have_run(error):
        text += " (the tool may have run nevertheless)"
    return text


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


def field_of(thing: Any, name: str) -> Any:
    """A field of a model's tool call, which is a dict or an object of the vendor's SDK."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


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


class LlmOffice:
    """Names the tools of all Computers for a model, and knows what a name meant when the model was given it.

    Args:
        tools: of the Computers in the office.
        call: runs a tool of a Computer.
    """

    def __init__(self, tools: ToolCache, call: CallTool) -> None:
        self._tools = tools
        self._call = call
        self._book = ToolBook()

    async def tools(self) -> list[NamedTool]:
        """The tools of all Computers under names for a model; a Computer whose tools were never fetched is left out."""
        named = name_tools(await self._tools.all())
        self._book.give(named)
        return named

    async def run_openai(self, tool_call: Any, timeout: float) -> dict[str, Any]:
        """See `run_openai`."""
        await self._learn_names()
        return await run_openai(self._book, self._call, tool_call, timeout)

    async def run_anthropic(self, block: Any, timeout: float) -> dict[str, Any]:
        """See `run_anthropic`."""
        await self._learn_names()
        return await run_anthropic(self._book, self._call, block, timeout)

    async def _learn_names(self) -> None:
        """A model may call tools that another run of the application showed it."""
        if self._book.empty:
            await self.tools()
