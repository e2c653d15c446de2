"""Results of tools as a model gets them: text, and the contents of OpenAI's and Anthropic's APIs."""

import json
from base64 import b64decode
from contextlib import suppress
from typing import Any, Final

from smcp_agent.results import (
    AudioContent,
    CallResult,
    Content,
    ImageContent,
    LinkContent,
    ResourceContent,
    TextContent,
)

PICTURES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""What both APIs take; they refuse a whole request for another one."""
MAX_PICTURE: Final = 5 * 1024 * 1024
"""Characters of base64: the limit of Anthropic's API for one picture, the smaller of the two."""
NOTHING: Final = "(the tool returned nothing)"


def model_parts(result: CallResult) -> list[str | ImageContent]:
    """What a model gets of a result, at least one: texts, and the pictures that the APIs take. Other contents are
    described."""
    parts: list[str | ImageContent] = []
    for block in result.content:
        if (picture := _picture(block)) is not None:
            parts.append(picture)
        elif text := as_text(block):
            parts.append(text)
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return parts or [NOTHING]


def result_text(result: CallResult) -> str:
    """The result as text for a model; a failure is marked, and what is not text is described."""
    text = "\n".join(each if isinstance(each, str) else as_text(each) for each in model_parts(result))
    return f"The tool failed: {text}" if result.is_error and not text.startswith("Error") else text


def openai_parts(result: CallResult) -> list[dict[str, Any]]:
    """The result as parts of an output in OpenAI's Responses API: texts and pictures."""
    parts = [
        {"type": "input_text", "text": each}
        if isinstance(each, str)
        else {"type": "input_image", "image_url": data_url(each)}
        for each in model_parts(result)
    ]
    return [{"type": "input_text", "text": "The tool failed:"}, *parts] if result.is_error else parts


def anthropic_output(result: CallResult) -> list[dict[str, Any]]:
    """The result as content blocks: texts and pictures as they are, other contents described."""
    return [
        {"type": "text", "text": each}
        if isinstance(each, str)
        else {"type": "image", "source": {"type": "base64", "media_type": each.mime_type, "data": each.data}}
        for each in model_parts(result)
    ]


def _picture(block: Content) -> ImageContent | None:
    """A picture that the APIs take, from an image or an embedded resource."""
    match block:
        case ImageContent(data, kind) | ResourceContent(blob=str(data), mime_type=kind) if kind in PICTURES:
            with suppress(ValueError):
                if len(data) <= MAX_PICTURE and b64decode(data, validate=True):
                    return ImageContent(data, str(kind))
    return None


def data_url(picture: ImageContent) -> str:
    """The picture as a URL, as OpenAI's APIs take it."""
    return f"data:{picture.mime_type};base64,{picture.data}"


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
