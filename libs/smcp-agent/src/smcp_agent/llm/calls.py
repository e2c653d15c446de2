"""A model's tool calls in, what to append to its conversation out."""

import json
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol

from smcp_agent.errors import Malformed, NotFound, SmcpError, may_have_run
from smcp_agent.llm.tools import ToolBook
from smcp_agent.results import (
    AudioContent,
    CallResult,
    Content,
    ImageContent,
    LinkContent,
    ResourceContent,
    TextContent,
)

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
