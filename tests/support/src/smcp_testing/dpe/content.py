"""What elements hold. The pages show the contents of some categories only, so they are read with tolerance.

Nothing here raises, whatever JSON it is given; what cannot be made sense of is None.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_DEPTH: Final = 16
"""Of lists in lists; what lies deeper stands as JSON."""


@dataclass(frozen=True, slots=True)
class Table:
    """One column at least."""

    headers: Sequence[str]
    """As many as the longest row has cells."""
    rows: Sequence[Sequence[str]]
    """As they came: a row may be short."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a list, with what stands indented below it."""

    text: str
    below: "Listing | None" = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of one item at least."""

    items: Sequence[Item]
    ordered: bool


@dataclass(frozen=True, slots=True)
class Element:
    """An element, as far as it can be read."""

    category: str
    summary: str
    content: Any

    def field(self, *names: str) -> str | None:
        """The first of these fields of the content that is a text."""
        if not isinstance(self.content, Mapping):
            return None
        return next((value for name in names if isinstance(value := self.content.get(name), str)), None)

    def text(self, *names: str) -> str | None:
        """The same; the content itself where that is a text."""
        return self.content if isinstance(self.content, str) else self.field(*names)


Renderers = Mapping[str, Callable[[Element], str | None]]
"""How the elements of a category are written: None where the content does not fit it."""


def rendered(value: object, renderers: Renderers, other: Callable[[Element], str]) -> str:
    """Write an element by the rule of its category, else as `other` does; nothing where it has no category."""
    element = element_of(value)
    if element is None:
        return ""
    render = renderers.get(element.category)
    written = None if render is None else render(element)
    return other(element) if written is None else written


def element_of(value: object) -> Element | None:
    """Read an element; None where it has no category."""
    if not isinstance(value, Mapping) or not isinstance(value.get("category"), str):
        return None
    summary = value.get("summary")
    return Element(value["category"], summary if isinstance(summary, str) else "", value.get("content"))


def level_of(content: object) -> int:
    """The level of a heading: 1 to 6; 1 where it says none."""
    level = content.get("level") if isinstance(content, Mapping) else None
    return min(max(level, 1), 6) if isinstance(level, int) else 1


def table_of(content: object) -> Table | None:
    """`headers` and `rows`; of headers that are too few, the others are empty."""
    if not isinstance(content, Mapping):
        return None
    headers, rows = _cells(content.get("headers")), [_cells(row) for row in _list(content.get("rows"))]
    width = max(map(len, [headers, *rows]))
    return Table(headers + [""] * (width - len(headers)), rows) if width else None


def chart_of(element: Element) -> tuple[str, str] | None:
    """The title of a chart, else the summary of its element, and what its data say."""
    title, said = element.field("title"), element.field("data_summary")
    return None if title is None and said is None else (title or element.summary, said or "")


def list_of(content: object, depth: int = 1) -> Listing | None:
    """`items` (texts, or objects with `text` and `items` of their own) and `ordered`; or the items alone."""
    ordered = isinstance(content, Mapping) and content.get("ordered") is True
    items = _list(content.get("items") if isinstance(content, Mapping) else content)
    return Listing([_item(item, depth) for item in items], ordered) if items else None


def plain(value: object) -> str:
    """A value as a text: nothing for null, JSON for what is neither text nor number."""
    match value:
        case None:
            return ""
        case str():
            return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return "…"


def _item(value: object, depth: int) -> Item:
    if not isinstance(value, Mapping | list) or depth >= MAX_DEPTH:
        return Item(plain(value))
    text = value.get("text") if isinstance(value, Mapping) else ""
    return Item(plain(text), list_of(value, depth + 1))


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _cells(row: object) -> list[str]:
    if row is None:
        return []
    return [plain(cell) for cell in _list(row)] if isinstance(row, list | tuple) else [plain(row)]
