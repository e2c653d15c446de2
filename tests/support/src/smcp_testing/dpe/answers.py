"""Answers to reads of `dpe://` URIs in the formats `markdown` and `text` (finder.txt), and what is odd in them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from smcp_testing.dpe.content import plain
from smcp_testing.dpe.escaping import destination, heading, inline, paragraphs
from smcp_testing.dpe.markdown import element_markdown, page_markdown
from smcp_testing.dpe.text import element_text, one_line, page_text

RENDERED: Final[Mapping[int, str]] = {0: "documents", 1: "pages", 2: "elements", 3: "content"}
"""The field of each level that gives its place to `content_markdown` or `content_text`."""

MAX_UNKNOWN: Final = 20
"""Unknown categories of one answer that are named."""
_SHOWN: Final = 40


def in_format(answer: Mapping[str, Any], level: int, chosen: str) -> dict[str, Any]:
    """Return an answer (JSON of that level) in a format: the other fields stay as they are.

    Level 0 is rendered as the list of its documents; level 1 as title, summary and, with `depth=pages`, the list of its
    pages; level 2 as its elements; level 3 as its element.
    """
    if chosen == "json":
        return dict(answer)
    kept = {name: value for name, value in answer.items() if name != RENDERED[level]}
    if chosen == "markdown":
        return {**kept, "content_markdown": _markdown(answer, level)}
    return {**kept, "content_text": _text(answer, level)}


def _markdown(answer: Mapping[str, Any], level: int) -> str:
    match level:
        case 0:
            return "\n".join(_entry_markdown(*entry) for entry in _documents(answer))
        case 1:
            title, summary = _string(answer, "title"), _string(answer, "summary")
            pages = "\n".join(_entry_markdown(*entry) for entry in _pages(answer))
            return "\n\n".join(filter(None, [title and f"# {heading(title)}", paragraphs(summary), pages]))
        case 2:
            return page_markdown(_objects(answer, "elements"))
        case _:
            return element_markdown(answer)


def _text(answer: Mapping[str, Any], level: int) -> str:
    match level:
        case 0:
            return "\n".join(_entry_text(*entry) for entry in _documents(answer))
        case 1:
            pages = "\n".join(_entry_text(*entry) for entry in _pages(answer))
            return "\n\n".join(filter(None, [_string(answer, "title"), _string(answer, "summary"), pages]))
        case 2:
            return page_text(_objects(answer, "elements"))
        case _:
            return element_text(answer)


def _documents(answer: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, URI and summary of each document of a catalog."""
    for document in _objects(answer, "documents"):
        name = _string(document, "title") or _string(document, "doc_ref")
        yield name, _string(document, "uri"), _string(document, "summary")


def _pages(answer: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The same of each page of an index; a page has no summary."""
    for page in _objects(answer, "pages"):
        yield _string(page, "title") or plain(page.get("page_index")), _string(page, "uri"), ""


def _entry_markdown(name: str, uri: str, summary: str) -> str:
    shown = f"[{inline(name or uri)}]({destination(uri)})" if uri else paragraphs(one_line(name))
    return f"- {shown}: {inline(summary)}" if summary else f"- {shown}".rstrip(" ")


def _entry_text(name: str, uri: str, summary: str) -> str:
    shown = f"{one_line(name)} ({uri})" if name and uri else one_line(name) or uri
    return f"- {shown}: {one_line(summary)}" if summary else f"- {shown}".rstrip(" ")


def _objects(answer: Mapping[str, Any], field: str) -> Iterator[Mapping[str, Any]]:
    found = answer.get(field)
    yield from (each for each in (found if isinstance(found, list) else ()) if isinstance(each, Mapping))


def _string(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
