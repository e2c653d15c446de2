"""Documents in the formats `markdown` and `text`, as an MCP server renders them (finder.txt, Markdown 渲染规则)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

RENDERED: Final = ("documents", "pages", "elements", "content")
"""The field of each level that gives its place to `content_markdown` or `content_text`."""

_MARKS: Final = re.compile(r"[\\`*_\[\]#|<>$]")


def in_format(answer: Mapping[str, Any], level: int, chosen: str) -> dict[str, Any]:
    """Return an answer (JSON of that level) in a format: the other fields stay as they are."""
    if chosen == "json":
        return dict(answer)
    kept = {name: value for name, value in answer.items() if name != RENDERED[level]}
    blocks = (rendered(element, markdown=chosen == "markdown") for element in _elements(answer, level))
    return {**kept, f"content_{chosen}": "\n\n".join(blocks)}


def rendered(element: Mapping[str, Any], *, markdown: bool) -> str:
    """Render an element; one without a rule, or whose content does not fit its category, is `[category: summary]`."""

    def write(text: object) -> str:
        return _MARKS.sub(r"\\\g<0>", str(text)) if markdown else str(text)

    match element["category"], element.get("content"):
        case "heading", {"level": int(level), "text": str(text)}:
            return f"{'#' * level} {write(text)}" if markdown else text
        case "text", {"text": str(text)}:
            return write(text)
        case "table", {"headers": list(headers), "rows": list(rows)}:
            lines = [[write(cell) for cell in row] for row in (headers, *rows)]
            if not markdown:
                return "\n".join(map("\t".join, lines))
            lines.insert(1, ["---"] * len(headers))
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)
        case "list", {"items": list(items), **more}:
            return "\n".join(
                f"{number}. {write(item)}" if more.get("ordered") else f"- {write(item)}"
                for number, item in enumerate(items, 1)
            )
        case "code", {"code": str(code), **more}:
            return f"```{more.get('language', '')}\n{code}\n```" if markdown else code
        case "chart", {"title": str(title), "data_summary": str(said)}:
            return f"[图表: {write(title)}] {write(said)}"
        case "image", {"url": str(url), "alt": str(alt)} if markdown:
            return f"![{write(alt)}]({url})"
        case "image", {"description": str(description)}:
            return f"[图片: {write(description)}]"
        case "link", {"text": str(text), "url": str(url)}:
            return f"[{write(text)}]({url})" if markdown else f"{text} ({url})"
        case "formula", {"expression": str(expression)}:
            return f"$ {expression} $" if markdown else expression
    return f"[{write(element['category'])}: {write(element.get('summary', ''))}]"


def _elements(answer: Mapping[str, Any], level: int) -> Iterator[Mapping[str, Any]]:
    """A catalog and an index of pages as elements: links, below title and summary."""
    if level == 3:
        yield answer
    elif level == 2:
        yield from answer["elements"]
    else:
        if level == 1:
            yield {"category": "heading", "content": {"level": 1, "text": answer["title"]}}
            yield {"category": "text", "content": {"text": answer["summary"]}}
        for entry in answer.get(RENDERED[level], ()):
            yield {"category": "link", "content": {"text": entry["title"], "url": entry["uri"]}}
