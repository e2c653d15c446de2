"""The cursor of `resources/list` and `resources/templates/list` over the MCP servers of a Computer. Pure.

It names a server and an item of the Computer's own index, and holds nothing that an MCP server made: so it survives
restarts of that server and changes of its list.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from smcp_bus import exact_json
from smcp_computer.mcp.errors import bad_field

CURSOR_FIELD: Final = "payload.params.cursor"
NOT_GIVEN: Final = "is none that this list gave"
MAX_NUMBER: Final = 10_000_000
_DIGEST_BYTES: Final = 9

Kind = Literal["resources", "templates"]
PAGE_ITEMS: Final = 100
PAGE_BYTES: Final = 1024 * 1024
"""A page goes on to the next one above it: the smallest clients take 4 MiB in one message."""
ITEM_BYTES: Final = 1024 * 1024
"""An item above it is left out, so that it costs only itself."""
SEPARATOR: Final = "__"
SERVER_KEY: Final = "serverId"
"""The field of an item that names its server (computer.txt, resources chapter, 3, allows routing fields)."""

Item = Mapping[str, Any]
URI_KEY: Final[Mapping[Kind, str]] = {"resources": "uri", "templates": "uriTemplate"}


@dataclass(frozen=True, slots=True)
class Position:
    """The item after which a listing goes on."""

    kind: Kind
    server: str
    number: int
    """Index (from 0) in its server's list of the last item given."""
    mark: str
    """Tells that item from others: see `mark_of`."""


def mark_of(uri: str) -> str:
    digest = hashlib.blake2b(uri.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode()


def write_cursor(position: Position) -> str:
    fields = [position.kind[0], position.server, position.number, position.mark]
    return base64.urlsafe_b64encode(orjson.dumps(fields)).decode().rstrip("=")


def read_cursor(cursor: str, kind: Kind, server: str | None = None) -> Position:
    """Read a cursor of a list of that kind, of one server or (None) of all.

    Raises:
        Malformed: it is none that `write_cursor` gave for such a list; `details.field` is `payload.params.cursor`.
    """
    try:
        raw = cursor.encode("ascii")
        fields: Any = orjson.loads(base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True))
    except ValueError:
        raise bad_field(CURSOR_FIELD, NOT_GIVEN) from None
    match fields:
        case [str(letter), str(of), int(number), str(mark)] if (
            letter == kind[0] and server in (None, of) and not isinstance(number, bool) and 0 <= number <= MAX_NUMBER
        ):
            return Position(kind, of, number, mark)
    raise bad_field(CURSOR_FIELD, NOT_GIVEN)


def next_number(position: Position, uris: Sequence[str]) -> int:
    """The number of the next item in the list of its server: after the item given last, wherever it is now; if it is
    gone, its old number, which the item after it has now."""
    at = position.number
    if at < len(uris) and mark_of(uris[at]) == position.mark:
        return at + 1
    return next((number + 1 for number, uri in enumerate(uris) if mark_of(uri) == position.mark), at)


@dataclass(slots=True)
class Page:
    items: list[Item] = field(default_factory=list)
    next: Position | None = None
    """None: this was the last one."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """(server, URI) of items that are too large; for the log."""


def page_of(kind: Kind, lists: Mapping[str, Sequence[Item]], after: Position | None = None) -> Page:
    """The page behind `after` over the lists of all servers, in order of the servers' names. Each item names its
    server.
    """
    page, size, key = Page(), 0, URI_KEY[kind]
    last: Position | None = None
    for server in sorted(lists):
        items, begin = lists[server], 0
        if after is not None and server < after.server:
            continue
        if after is not None and server == after.server:
            begin = next_number(after, [item[key] for item in items])
        for number, item in enumerate(items[begin:], begin):
            length = len(exact_json.written(item))
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
    name = item.get("name")
    return name if isinstance(name, str) else ""
