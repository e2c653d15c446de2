"""Results of tools as a model gets them: text, and the contents of OpenAI's and Anthropic's APIs.

Of a result that is too long, a model gets the beginning, and a link under which the rest can be read for a while.
"""

import json
from base64 import b64decode
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from smcp_agent.errors import NotFound
from smcp_agent.results import (
    AudioContent,
    CallResult,
    Content,
    ImageContent,
    LinkContent,
    ResourceContent,
    TextContent,
    content_block,
)
from smcp_proto.schemas import SMCPTool
from smcp_proto.validation import refused

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


KEPT_CHARS: Final = 32 * 1024 * 1024
"""Characters of all kept texts together: one result of the largest size fits."""
KEPT_TEXTS: Final = 1000
"""Each text costs memory of its own, however short it is: it counts as this part of `KEPT_CHARS` at least."""
RESULT_SCHEME: Final = "a2c-result://"
_OFFSET: Final = "?offset="
"""In a link, before the character at which the next page begins."""
MAX_RESULT_META: Final = "anthropic/maxResultSizeChars"
"""In a tool's `_meta`: up to this length its results are not cut."""
LARGEST: Final = 500_000
"""The most that `MAX_RESULT_META` may say: the bound of the clients that know the key."""


class Previews:
    """Cuts results, and keeps the whole texts, each for the user for whom the tool was called. Where they are too many,
    the user who has most of them loses the oldest."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, str | None]] = {}
        """The whole texts with their users, by URI, the oldest first."""

    def cut(self, result: CallResult, max_chars: int, user: str | None = None) -> CallResult:
        """The result, with a preview of its text where a model would get more than `max_chars` characters."""
        texts = [as_text(each) for each in result.content if _is_text(each)]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(result.structured_content, ensure_ascii=False)]
        whole = "\n".join(texts)
        if len(whole) <= max_chars:
            return result
        uri = f"{RESULT_SCHEME}{uuid4().hex}"
        self._texts[uri] = whole, user
        self._drop_surplus()
        shown, *link = _page(uri, whole, 0, max_chars)
        content = [shown, *(each for each in result.raw["content"] if not _is_text(content_block(each))), *link]
        raw = {**result.raw, "content": content, "structuredContent": None}
        return replace(result, content=tuple(map(content_block, content)), structured_content=None, raw=raw)

    def _drop_surplus(self) -> None:
        least = KEPT_CHARS // KEPT_TEXTS
        held: Counter[str | None] = Counter()
        for text, owner in self._texts.values():
            held[owner] += max(least, len(text))
        while held.total() > KEPT_CHARS:
            ((most, _),) = held.most_common(1)
            oldest = next(uri for uri, (_, owner) in self._texts.items() if owner == most)
            held[most] -= max(least, len(self._texts.pop(oldest)[0]))

    def read(self, uri: str, max_chars: int, user: str | None = None) -> CallResult:
        """The text from where the link says. Raises NotFound, Malformed."""
        name, _, said = uri.partition(_OFFSET)
        whole, owner = self._texts.get(name, (None, None))
        if whole is None or owner != user:
            raise NotFound(f"{name} is not kept (any more): call the tool again, for less", details={"uri": uri})
        offset = int(said or 0) if (said or "0").isdecimal() and len(said) < 20 else -1
        if not 0 <= offset <= len(whole):
            raise refused("uri", f"its offset has to be a whole number from 0 to {len(whole)}")
        return CallResult(content=tuple(map(content_block, _page(name, whole, offset, max_chars))))


def allowed_chars(max_chars: object, tool: SMCPTool | None = None) -> int:
    """How many characters a result of this tool may have. Raises Malformed: `max_chars` is not a positive number."""
    if not isinstance(max_chars, int) or isinstance(max_chars, bool) or max_chars < 1:
        raise refused("max_chars", "a whole number of characters from 1")
    limit = (tool.meta or {}).get(MAX_RESULT_META) if tool is not None else None
    return max(max_chars, min(limit, LARGEST)) if isinstance(limit, int) else max_chars


def _is_text(block: Content) -> bool:
    return isinstance(block, TextContent) or (isinstance(block, ResourceContent) and block.text is not None)


def _page(uri: str, whole: str, offset: int, max_chars: int) -> list[dict[str, Any]]:
    """A content block with the text from `offset`, and a link where there is more."""
    end = offset + max_chars
    name = f"characters {offset} to {end} of {len(whole)}; read on here"
    link = [{"type": "resource_link", "uri": f"{uri}{_OFFSET}{end}", "name": name}] if end < len(whole) else []
    return [{"type": "text", "text": whole[offset:end]}, *link]
