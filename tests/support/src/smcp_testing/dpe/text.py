"""Elements as plain text: what `format=text` asks for. Nothing is escaped, and nothing that a server sends raises."""

from collections.abc import Iterable
from typing import Final

from smcp_testing.dpe.content import Element, Listing, Renderers, chart_of, list_of, rendered, table_of


def element_text(value: object) -> str:
    """Render an element (a `DPEElement` as JSON); the cells of a table are parted by tabs.

    One whose content does not fit its category, and one of a category without text, is `[category: summary]`.
    """
    return rendered(value, _RENDERERS, _other)


def page_text(elements: Iterable[object]) -> str:
    """Render the elements of a page, in their order, with an empty line between them."""
    return "\n\n".join(filter(None, map(element_text, elements)))


def listing(content: Listing, indent: str = "") -> str:
    """Render a list, with the lists in it."""
    lines: list[str] = []
    for number, item in enumerate(content.items, 1):
        marker = f"{indent}{number}. " if content.ordered else f"{indent}- "
        lines.append((marker + one_line(item.text)).rstrip())
        if item.below is not None:
            lines.append(listing(item.below, indent + "  "))
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Return text without line breaks and tabs."""
    return " ".join(text.split())


def _text(element: Element) -> str | None:
    return element.text("text")


def _table(element: Element) -> str | None:
    table = table_of(element.content)
    if table is None:
        return None
    return "\n".join("\t".join(map(one_line, row)) for row in (table.headers, *table.rows))


def _list(element: Element) -> str | None:
    content = list_of(element.content)
    return None if content is None else listing(content)


def _code(element: Element) -> str | None:
    return element.text("code", "text")


def _chart(element: Element) -> str | None:
    chart = chart_of(element)
    return None if chart is None else "[图表: {}] {}".format(*chart).rstrip()


def _image(element: Element) -> str | None:
    said = element.field("description") or element.field("alt")
    return None if said is None else f"[图片: {said}]"


def _link(element: Element) -> str | None:
    url, text = element.text("url"), element.field("text")
    return url if url is None or not text else f"{text} ({url})"


def _formula(element: Element) -> str | None:
    return element.text("expression")


def _other(element: Element) -> str:
    return f"[{element.category}: {element.summary}]" if element.summary else f"[{element.category}]"


_RENDERERS: Final[Renderers] = {
    "heading": _text,
    "text": _text,
    "table": _table,
    "list": _list,
    "code": _code,
    "chart": _chart,
    "image": _image,
    "link": _link,
    "formula": _formula,
}
