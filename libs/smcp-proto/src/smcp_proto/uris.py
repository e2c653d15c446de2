"""`window://` and `dpe://` URIs: reads and checks them, and says which name the same (desktop.txt, finder.txt)."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from smcp_proto.schemas.finder import ELEMENT_CATEGORIES, MAX_LIMIT

WINDOW: Final = "window"
DPE: Final = "dpe"
HOSTED: Final = (DPE, WINDOW)
"""Schemes whose URIs are routed by their host."""
MAX_URI_LENGTH: Final = 8192

_URI: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>[^/?#]*)(?P<path>/[^?#]*)?(\?(?P<query>[^#]*))?(?P<fragment>#.*)?",
    re.DOTALL,
)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_IN_HOST: Final = re.compile(r"[\s@:\[\]\\]")
_NUMBER: Final = re.compile(r"[0-9]{1,15}")


def _split(text: str, scheme: str) -> tuple[str, list[str], str]:
    """The host, decoded; the segments of the path and the query, as they are written."""
    if len(text) > MAX_URI_LENGTH:
        raise ValueError(f"uri: longer than {MAX_URI_LENGTH} characters")
    match = _URI.fullmatch(text)
    if match is None or match["scheme"].lower() != scheme:
        raise ValueError(f"scheme: not a {scheme}:// URI")
    if match["fragment"] is not None:
        raise ValueError("fragment: not allowed")
    if _NOT_IN_HOST.search(match["host"]):
        raise ValueError("host: holds a character that no host has (a user, a port and spaces are not allowed)")
    path = (match["path"] or "").removeprefix("/")
    return _decode_named(match["host"], "host"), path.split("/") if path else [], match["query"] or ""


def _decode(text: str, part: str) -> str:
    if "%" not in text and text.isascii() and text.isprintable():  # nearly all
        return text
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{part}: holds a broken percent escape")
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeError:
        raise ValueError(f"{part}: is not UTF-8 text") from None
    if _CONTROL.search(decoded):
        raise ValueError(f"{part}: holds a control character")
    return decoded


def _decode_named(text: str, part: str) -> str:
    if not text:
        raise ValueError(f"{part}: is empty")
    return _decode(text, part)


def _number(text: str, part: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{part}: not an integer from 0 on")
    return int(text)


class WindowUri(NamedTuple):
    """The identity of a window."""

    host: str
    """The MCP server's namespace."""
    path: tuple[str, ...] = ()
    """Decoded segments: `c%2Fd` is the one segment `c/d`."""


def parse_window_uri(text: str) -> WindowUri:
    """Read a window URI. A query does not count: such a URI carries no metadata. Raises ValueError, which begins with
    the part that is wrong (`scheme: …`, `host: …`, `path: …`, `fragment: …`)."""
    host, segments, _ = _split(text, WINDOW)
    return WindowUri(host, tuple(_decode(segment, "path") for segment in segments))


def window_uri(text: str) -> WindowUri | None:
    """The window that a URI names; None: it names none."""
    if scheme_of(text) != WINDOW:
        return None
    try:
        return parse_window_uri(text)
    except ValueError:
        return None


FORMATS: Final = ("json", "markdown", "text")
DEPTHS: Final = ("metadata", "pages")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"format": FORMATS, "depth": DEPTHS, "categories": ELEMENT_CATEGORIES}
_LEVELS: Final[Mapping[str, tuple[int, ...]]] = {
    "format": (0, 1, 2, 3),
    "depth": (1,),
    "offset": (1,),
    "limit": (1,),
    "categories": (2,),
}
"""The query parameters, and the levels where each has a meaning."""


class DpeUri(NamedTuple):
    """A document or its part; the query, which says how it is shown, is for its MCP server."""

    host: str
    """The MCP server's namespace."""
    doc_ref: str | None = None
    page: int | None = None
    element: str | None = None

    @property
    def level(self) -> int:
        """Whether it names the list (0), a document, a page or an element (3)."""
        if self.doc_ref is None:
            return 0
        if self.page is not None:
            return 2
        return 1 if self.element is None else 3


def parse_dpe_uri(text: str) -> DpeUri:
    """Read a dpe URI. One slash at its end, and query parameters that the protocol does not know, say nothing.

    Raises:
        ValueError: it begins with the part or the query parameter that is wrong (`host: …`, `doc-ref: …`,
            `sub-path: …`, `limit: …`). A parameter on a level where it has no meaning is wrong too.
    """
    host, segments, query = _split(text, DPE)
    if len(segments) > 1 and not segments[-1]:
        segments.pop()
    target: dict[str, Any] = {"doc_ref": _decode_named(segments[0], "doc-ref")} if segments else {}
    match segments[1:]:
        case []:
            pass
        case ["pages", number]:
            target["page"] = _number(number, "sub-path")
        case ["elements", element]:
            target["element"] = _decode_named(element, "sub-path")
        case _:
            raise ValueError("sub-path: neither pages/N nor elements/ID")
    uri = DpeUri(host, **target)
    _check_query(query, uri.level)
    return uri


def _check_query(query: str, level: int) -> None:
    seen = set()
    for pair in filter(None, query.split("&")):
        name, text = (_decode(part, "query") for part in pair.partition("=")[::2])
        if not name:
            raise ValueError("query: a parameter without a name")
        if name not in _LEVELS:
            continue
        if name in seen:
            raise ValueError(f"{name}: given twice")
        seen.add(name)
        if level not in _LEVELS[name]:
            raise ValueError(f"{name}: has no meaning on level {level}")
        if choices := _CHOICES.get(name):
            if not set(text.split(",") if name == "categories" else [text]) <= set(choices):
                raise ValueError(f"{name}: none of {', '.join(choices)}")
        elif _number(text, name) not in range(1, MAX_LIMIT + 1) and name == "limit":
            raise ValueError(f"limit: not from 1 to {MAX_LIMIT}")


def scheme_of(uri: str) -> str:
    """In lower case, as schemes are compared (RFC 3986, 3.1); the whole where there is no colon."""
    return uri.partition(":")[0].lower()


def without_query(uri: str) -> str:
    """What identifies a resource: the query of a `dpe://` URI says how it is shown, a `window://` URI has none."""
    return uri.partition("?")[0] if scheme_of(uri) in HOSTED else uri


MAX_ABOVE: Final = 64
"""How many URIs `resources_above` gives at most."""


def resources_above(uri: str) -> Iterator[str]:
    """The URIs that contain `uri`, the nearest first: without its query, then each parent path with and without a slash
    at its end. MCP lets a server notify the subscribers of a resource when a part of it changes."""
    path = uri.partition("?")[0]
    authority = path.find("://") + 3
    slashes = [slash.start() for slash in re.finditer("/", path) if slash.start() >= authority][-MAX_ABOVE:]
    ends = {len(path), *(slash + 1 for slash in slashes), *(slash for slash in slashes if slash > authority)}
    for end in sorted(ends - {len(uri)}, reverse=True)[:MAX_ABOVE]:
        yield uri[:end]


def host_of(uri: str) -> str | None:
    """The host of a `window://` or `dpe://` URI; None for others, and for invalid ones."""
    with suppress(ValueError):
        match scheme_of(uri):
            case "window":
                return parse_window_uri(uri).host
            case "dpe":
                return parse_dpe_uri(uri).host
    return None


def host_conflicts(hosts: Mapping[str, Set[str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The hosts (`host_of`) that more than one MCP server uses, in order, each with the names of those servers."""
    uses = Counter(chain.from_iterable(hosts.values()))
    for host in sorted(host for host, servers in uses.items() if servers > 1):
        yield host, tuple(sorted(server for server, own in hosts.items() if host in own))
