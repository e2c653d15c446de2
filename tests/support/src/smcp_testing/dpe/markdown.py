"""Elements as Markdown, category by category (finder.txt, Markdown 渲染规则). Nothing that a server sends raises."""

from collections.abc import Iterable
from typing import Final

from smcp_testing.dpe.content import Element, Listing, Renderers, chart_of, level_of, list_of, rendered, table_of
from smcp_testing.dpe.escaping import cell, destination, fenced, formula, heading, inline, paragraphs

BETWEEN_LISTS: Final = "<!-- -->"
"""Two lists in a row would be read as one."""


def element_markdown(value: object) -> str:
    """Render an element (a `DPEElement` as JSON): a block without an empty line before and after.

    One whose content does not fit its category is rendered like the categories without a rule: `[category: summary]`.
    Empty text is nothing, and so is what has no category.
    """
    return rendered(value, _RENDERERS, _other)


def page_markdown(elements: Iterable[object]) -> str:
    """Render the elements of a page, in their order, with an empty line between them."""
    blocks: list[str] = []
    for block in filter(None, map(element_markdown, elements)):
        if blocks and _marker(block) and _marker(block) == _marker(blocks[-1]):
            blocks.append(BETWEEN_LISTS)
        blocks.append(block)
    return "\n\n".join(blocks)


def listing(content: Listing) -> str:
    """Render a list, with the lists in it."""
    lines: list[str] = []
    for number, item in enumerate(content.items, 1):
        marker = f"{number}." if content.ordered else "-"
        text = paragraphs(item.text)
        below = "" if item.below is None else listing(item.below)
        # an item without text cannot follow a paragraph directly: `-` would make it a heading
        gap = "\n\n" if text and below.partition("\n")[0] in ("-", "1.") else "\n"
        whole = text + (gap + below if below else "")
        indented = whole.replace("\n", "\n" + " " * (len(marker) + 1))
        lines += [line.rstrip(" ") for line in f"{marker} {indented}".split("\n")]
    return "\n".join(lines)


def _marker(block: str) -> str:
    """The kind of list that a block is; of all blocks only lists begin like this, since all else is escaped."""
    first = block.partition("\n")[0]
    return next((marker for marker in ("-", "1.") if first == marker or first.startswith(f"{marker} ")), "")


def _heading(element: Element) -> str | None:
    text = element.text("text")
    return None if text is None else f"{'#' * level_of(element.content)} {heading(text)}".rstrip(" ")


def _text(element: Element) -> str | None:
    text = element.text("text")
    return None if text is None else paragraphs(text)


def _table(element: Element) -> str | None:
    table = table_of(element.content)
    if table is None:
        return None
    rows = [[cell(text) for text in row] for row in (table.headers, *table.rows)]
    rows.insert(1, ["---"] * len(table.headers))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _list(element: Element) -> str | None:
    content = list_of(element.content)
    return None if content is None else listing(content)


def _code(element: Element) -> str | None:
    code = element.text("code", "text")
    return None if code is None else fenced(code, element.field("language") or "")


def _chart(element: Element) -> str | None:
    chart = chart_of(element)
    return None if chart is None else "[图表: {}] {}".format(*map(inline, chart)).rstrip(" ")


def _image(element: Element) -> str | None:
    url, alt, description = element.field("url"), element.field("alt"), element.field("description")
    if url is not None:
        return f"![{inline(alt or description or element.summary)}]({destination(url)})"
    said = description or alt
    return None if said is None else f"[图片: {inline(said)}]"


def _link(element: Element) -> str | None:
    url = element.text("url")
    return None if url is None else f"[{inline(element.field('text') or url)}]({destination(url)})"


def _formula(element: Element) -> str | None:
    expression = element.text("expression")
    return None if expression is None else f"$ {formula(expression)} $"


def _other(element: Element) -> str:
    summary = inline(element.summary)
    return f"[{inline(element.category)}: {summary}]" if summary else f"[{inline(element.category)}]"


_RENDERERS: Final[Renderers] = {
    "heading": _heading,
    "text": _text,
    "table": _table,
    "list": _list,
    "code": _code,
    "chart": _chart,
    "image": _image,
    "link": _link,
    "formula": _formula,
}
"""The categories with a rule of their own."""
