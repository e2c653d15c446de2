"""One page over what the MCP servers of a Computer list. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from smcp_computer.resources.cursor import Kind, Position, mark_of, next_number

PAGE_ITEMS: Final = 100
PAGE_BYTES: Final = 1024 * 1024
"""A page goes on to the next one above it: the smallest clients take 4 MiB in one message."""
ITEM_BYTES: Final = 1024 * 1024
"""An item above it is left out, so that it costs only itself."""
SEPARATOR: Final = "__"
SERVER_KEY: Final = "serverId"
"""Of an item: whose it is (computer.txt, resources chapter, 3: routing fields may stand beside MCP's own)."""

Item = Mapping[str, Any]
URI_KEY: Final[Mapping[Kind, str]] = {"resources": "uri", "templates": "uriTemplate"}


@dataclass(slots=True)
class Page:
    """One page for an Agent."""

    items: list[Item] = field(default_factory=list)
    next: Position | None = None
    """None: this was the last one."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """(server, URI) of items that are too large; for the log."""


def page_of(kind: Kind, lists: Mapping[str, Sequence[Item]], after: Position | None = None) -> Page:
    """The next page over the lists of all servers, in order of the servers' names. Each item names its server.

    Args:
        lists: by server; each item has its URI, a string.
        after: where the page before it ended.
    """
    page, size = Page(), 0
    last: Position | None = None
    for server in sorted(lists):
        if after is not None and server < after.server:
            continue
        items, key = lists[server], URI_KEY[kind]
        begin = 0
        if after is not None and server == after.server:
            begin = next_number(after, [item[key] for item in items])
        for number in range(begin, len(items)):
            item = items[number]
            length = _size(item)
            if length > ITEM_BYTES:
                page.left_out.append((server, item[key]))
                continue
            if len(page.items) == PAGE_ITEMS or (page.items and size + length > PAGE_BYTES):
                page.next = last
                return page
            page.items.append({**item, SERVER_KEY: server})
            size += length
            last = Position(kind, server, number, mark_of(item[key]))
    return page


def named_apart(lists: Mapping[str, Sequence[Item]]) -> dict[str, list[Item]]:
    """The templates of all servers; a name that several servers use is prefixed by the server's: `<server>__<name>`."""
    users = Counter(name for items in lists.values() for name in set(map(_name, items)))
    return {
        server: [
            {**item, "name": f"{server}{SEPARATOR}{name}"} if (name := _name(item)) and users[name] > 1 else item
            for item in items
        ]
        for server, items in lists.items()
    }


def _name(item: Item) -> str:
    """Empty where a server sent none, or something else than a text."""
    name = item.get("name")
    return name if isinstance(name, str) else ""


def _size(item: Item) -> int:
    try:
        return len(orjson.dumps(item))
    except TypeError:  # what the fast encoder does not take, the slow one does: an integer of 70 digits, say
        return len(repr(item))
