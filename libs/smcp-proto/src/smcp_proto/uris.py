"""The parts of a URI: split, percent-decoded, checked, and encoded again."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args
from urllib.parse import quote, unquote_to_bytes

from smcp_proto.schemas.finder import DEFAULT_LIMIT, DEFAULT_OFFSET, ELEMENT_CATEGORIES, MAX_LIMIT, ElementCategory

MAX_URI_LENGTH: Final = 8192

_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>[^/?#]*)(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?P<fragment>#.*)?",
    re.DOTALL,
)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_IN_HOST = re.compile(r"[\s@:\[\]\\]")


@dataclass(frozen=True, slots=True)
class Parts:
    """A URI as it is written, split only."""

    host: str
    """Decoded and checked."""
    segments: tuple[str, ...]
    """Between the slashes of the path, not decoded yet; empty where there is no path, or `/` alone."""
    query: str | None
    """What follows `?`, not decoded yet; None without a `?`."""


def split_uri(text: str, scheme: str) -> Parts:
    """Split a URI of that scheme.

    Raises:
        ValueError: it begins with the part that is wrong (`scheme: …`, `host: …`).
    """
    if len(text) > MAX_URI_LENGTH:
        raise ValueError(f"uri: longer than {MAX_URI_LENGTH} characters")
    match = _URI.fullmatch(text)
    if match is None or match["scheme"].lower() != scheme:
        raise ValueError(f"scheme: not a {scheme}:// URI")
    if match["fragment"] is not None:
        raise ValueError("fragment: not allowed")
    if _NOT_IN_HOST.search(match["host"]):
        raise ValueError("host: holds a character that no host has (a user, a port and spaces are not allowed)")
    host = check_host(decode(match["host"], "host"))
    path = (match["path"] or "").removeprefix("/")
    query = None if match["query"] is None else match["query"][1:]
    return Parts(host, tuple(path.split("/")) if path else (), query)


def check_host(host: str) -> str:
    """Return the host. Raises ValueError where it is empty or holds a control character."""
    if not host:
        raise ValueError("host: is empty")
    return check_text(host, "host")


def check_text(text: str, part: str) -> str:
    """Return decoded text. Raises ValueError where it cannot stand in a URI, or holds a control character."""
    if _CONTROL.search(text):
        raise ValueError(f"{part}: holds a control character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{part}: is not Unicode text") from None
    return text


def decode(text: str, part: str) -> str:
    """Return `text` with its percent escapes resolved.

    Raises:
        ValueError: an escape is broken, or the result is not UTF-8 or holds a control character.
    """
    if "%" not in text:
        return check_text(text, part)
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{part}: holds a broken percent escape")
    try:
        return check_text(unquote_to_bytes(text).decode(), part)
    except UnicodeError:
        raise ValueError(f"{part}: its percent escapes are not UTF-8") from None


def encode(text: str) -> str:
    """Return `text` as one part of a URI: everything but `A-Z a-z 0-9 - . _ ~` escaped."""
    return quote(text, safe="")


WINDOW: Final = "window"


@dataclass(frozen=True, slots=True)
class WindowUri:
    """The identity of a window. `str()` writes the URI.

    Raises:
        ValueError: the host is empty, a part holds a control character, or the path is one empty segment (which
            would be written like no path).
    """

    host: str
    """The MCP server's namespace."""
    path: tuple[str, ...] = ()
    """Decoded segments: `c%2Fd` is the one segment `c/d`."""

    def __post_init__(self) -> None:
        check_host(self.host)
        if self.path == ("",):
            raise ValueError("path: its only segment is empty")
        for segment in self.path:
            check_text(segment, "path")

    def __str__(self) -> str:
        return "/".join([f"{WINDOW}://{encode(self.host)}", *map(encode, self.path)])


@dataclass(frozen=True, slots=True)
class ParsedWindow:
    """A window URI as a server wrote it."""

    uri: WindowUri
    warnings: tuple[str, ...] = ()
    """What was dropped; for the log."""


def parse_window_uri(text: str) -> ParsedWindow:
    """Read a window URI. A query is dropped with a warning: such a URI carries no metadata.

    Raises:
        ValueError: it begins with the part that is wrong (`scheme: …`, `host: …`, `path: …`, `fragment: …`).
    """
    parts = split_uri(text, WINDOW)
    uri = WindowUri(parts.host, tuple(decode(segment, "path") for segment in parts.segments))
    if parts.query is None:
        return ParsedWindow(uri)
    return ParsedWindow(uri, ("query: a window URI carries none; it was dropped",))


DPE: Final = "dpe"

Level = Literal[0, 1, 2, 3]
DpeFormat = Literal["json", "markdown", "text"]
DpeDepth = Literal["metadata", "pages"]

FORMATS: Final[tuple[DpeFormat, ...]] = get_args(DpeFormat)
DEPTHS: Final[tuple[DpeDepth, ...]] = get_args(DpeDepth)

PARAMETER_LEVELS: Final[Mapping[str, frozenset[Level]]] = {
    "format": frozenset({0, 1, 2, 3}),
    "depth": frozenset({1}),
    "offset": frozenset({1}),
    "limit": frozenset({1}),
    "categories": frozenset({2}),
}
"""The query parameters, and the levels where each has a meaning."""

_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class DpeUri:
    """What a dpe URI points at, and how it is to be answered. `str()` writes the URI, without what is default.

    Raises:
        ValueError: it begins with the part or the parameter that is wrong.
    """

    host: str
    """The MCP server's namespace."""
    doc_ref: str | None = None
    page: int | None = None
    """From 0."""
    element: str | None = None
    format: DpeFormat = "json"
    depth: DpeDepth = "metadata"
    offset: int = DEFAULT_OFFSET
    limit: int = DEFAULT_LIMIT
    categories: tuple[ElementCategory, ...] = ()
    """Only elements of these; empty: all."""
    other: tuple[tuple[str, str], ...] = ()
    """Query parameters that the protocol does not know, decoded, in their order."""

    def __post_init__(self) -> None:
        check_host(self.host)
        _check_target(self)
        _check_values(self)
        for name in _not_default(self):
            _check_level(name, self.level)
        for name, value in self.other:
            if not name or name in PARAMETER_LEVELS:
                raise ValueError("query: a parameter without a name, or one that has a field of its own")
            check_text(name, "query")
            check_text(value, "query")

    @property
    def level(self) -> Level:
        """Whether it names the list, a document, a page or an element (finder.txt, the four levels of a URI)."""
        return _level(self.doc_ref, self.page, self.element)

    @property
    def sub_path(self) -> str | None:
        """`pages/N` or `elements/ID` (decoded), None on levels 0 and 1."""
        return _sub_path(self.page, self.element)

    def __str__(self) -> str:
        segments = [f"{DPE}://{encode(self.host)}"]
        if self.doc_ref is not None:
            segments.append(encode(self.doc_ref))
        if self.page is not None:
            segments += ["pages", str(self.page)]
        if self.element is not None:
            segments += ["elements", encode(self.element)]
        query = [f"{name}={value}" for name, value in _not_default(self).items()]
        query += [f"{encode(name)}={encode(value)}" for name, value in self.other]
        return "/".join(segments) + ("?" + "&".join(query) if query else "")


def parse_dpe_uri(text: str) -> DpeUri:
    """Read a dpe URI; one slash at its end says nothing.

    Raises:
        ValueError: it begins with the part or the query parameter that is wrong (`host: …`, `doc-ref: …`,
            `sub-path: …`, `limit: …`). A parameter on a level where it has no meaning is wrong too.
    """
    parts = split_uri(text, DPE)
    doc_ref, page, element = _target(parts)
    known, other = _parameters(parts.query or "")
    for name in known:
        _check_level(name, _level(doc_ref, page, element))
    return DpeUri(
        host=parts.host,
        doc_ref=doc_ref,
        page=page,
        element=element,
        # the constructor refuses what is no format, depth or category
        format=cast("DpeFormat", known.get("format", "json")),
        depth=cast("DpeDepth", known.get("depth", "metadata")),
        offset=_number(known["offset"], "offset") if "offset" in known else DEFAULT_OFFSET,
        limit=_number(known["limit"], "limit") if "limit" in known else DEFAULT_LIMIT,
        categories=(
            cast("tuple[ElementCategory, ...]", tuple(known["categories"].split(","))) if "categories" in known else ()
        ),
        other=other,
    )


def _level(doc_ref: str | None, page: int | None, element: str | None) -> Level:
    if doc_ref is None:
        return 0
    if page is not None:
        return 2
    return 1 if element is None else 3


def _sub_path(page: int | None, element: str | None) -> str | None:
    if page is not None:
        return f"pages/{page}"
    return None if element is None else f"elements/{element}"


def _target(parts: Parts) -> tuple[str | None, int | None, str | None]:
    """The document, the page and the element that the path names."""
    segments = parts.segments
    if len(segments) > 1 and segments[-1] == "":
        segments = segments[:-1]
    if not segments:
        return None, None, None
    doc_ref = decode(segments[0], "doc-ref")
    match segments[1:]:
        case ():
            return doc_ref, None, None
        case ("pages", number):
            return doc_ref, _number(number, "sub-path"), None
        case ("elements", element):
            return doc_ref, None, decode(element, "sub-path")
        case _:
            raise ValueError("sub-path: neither pages/N nor elements/ID")


def _parameters(query: str) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """The parameters that the protocol knows, and the others."""
    known: dict[str, str] = {}
    other: list[tuple[str, str]] = []
    for name, value in _pairs(query):
        if name not in PARAMETER_LEVELS:
            other.append((name, value))
        elif name in known:
            raise ValueError(f"{name}: given twice")
        else:
            known[name] = value
    return known, tuple(other)


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for pair in query.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            yield decode(name, "query"), decode(value, "query")


def _number(text: str, part: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{part}: not an integer from 0 on")
    return int(text)


def _not_default(uri: DpeUri) -> dict[str, str]:
    """The parameters that `str()` has to write."""
    said = {
        "format": (uri.format, "json"),
        "depth": (uri.depth, "metadata"),
        "offset": (str(uri.offset), str(DEFAULT_OFFSET)),
        "limit": (str(uri.limit), str(DEFAULT_LIMIT)),
        "categories": (",".join(uri.categories), ""),
    }
    return {name: value for name, (value, default) in said.items() if value != default}


def _check_target(uri: DpeUri) -> None:
    if uri.doc_ref is None and (uri.page is not None or uri.element is not None):
        raise ValueError("doc-ref: a page or an element needs its document")
    if uri.page is not None and uri.element is not None:
        raise ValueError("sub-path: either a page or an element")
    if uri.doc_ref is not None:
        _check_part(uri.doc_ref, "doc-ref")
    if uri.element is not None:
        _check_part(uri.element, "sub-path")
    if uri.page is not None and not _NUMBER.fullmatch(str(uri.page)):
        raise ValueError("sub-path: not a page number")


def _check_part(text: str, part: str) -> None:
    if not text:
        raise ValueError(f"{part}: is empty")
    check_text(text, part)


def _check_values(uri: DpeUri) -> None:
    if uri.format not in FORMATS:
        raise ValueError(f"format: none of {', '.join(FORMATS)}")
    if uri.depth not in DEPTHS:
        raise ValueError(f"depth: none of {', '.join(DEPTHS)}")
    if not _NUMBER.fullmatch(str(uri.offset)):
        raise ValueError("offset: not an integer from 0 on")
    if not 1 <= uri.limit <= MAX_LIMIT:
        raise ValueError(f"limit: not from 1 to {MAX_LIMIT}")
    if any(category not in ELEMENT_CATEGORIES for category in uri.categories):
        raise ValueError(f"categories: not a list of {', '.join(ELEMENT_CATEGORIES)}")


def _check_level(name: str, level: Level) -> None:
    if level not in PARAMETER_LEVELS[name]:
        raise ValueError(f"{name}: has no meaning on level {level}")


HOSTED: Final = (DPE, WINDOW)
"""Schemes whose URIs are routed by their host."""


def scheme_of(uri: str) -> str:
    """In lower case, as schemes are compared (RFC 3986, 3.1); the whole where there is no colon."""
    return uri.partition(":")[0].lower()


def without_query(uri: str) -> str:
    """What identifies a resource: the query of a `dpe://` URI says how it is shown, a `window://` URI has none."""
    return uri.partition("?")[0] if scheme_of(uri) in HOSTED else uri


MAX_ABOVE: Final = 64
"""A URI may have thousands of segments, and nobody subscribes so far above."""

_SLASH: Final = re.compile("/")


def resources_above(uri: str) -> Iterator[str]:
    """The URIs of which `uri` is a part, the nearest first: without its query, then without its last segment, and so
    on, each with and without a slash at its end; at most `MAX_ABOVE`.

    MCP lets a server tell of the change of such a part to who subscribed to the whole.
    """
    path = uri.partition("?")[0]
    authority = path.find("://") + 3
    slashes = [slash.start() for slash in _SLASH.finditer(path, authority)][-MAX_ABOVE:]
    ends = {len(path), *(slash + 1 for slash in slashes), *(slash for slash in slashes if slash > authority)}
    for end in sorted(ends - {len(uri)}, reverse=True)[:MAX_ABOVE]:
        yield uri[:end]


@dataclass(frozen=True, slots=True)
class HostConflict:
    """One host, several MCP servers."""

    host: str
    servers: tuple[str, ...]
    """Two or more, by name."""


def host_conflicts(listed: Mapping[str, Iterable[str]]) -> tuple[HostConflict, ...]:
    """The hosts that more than one MCP server uses, by host.

    Args:
        listed: the URIs of the resources of each MCP server; those of other schemes and invalid ones do not count.
    """
    servers: dict[str, set[str]] = {}
    for server, uris in listed.items():
        for uri in uris:
            host = host_of(uri)
            if host is not None:
                servers.setdefault(host, set()).add(server)
    return tuple(HostConflict(host, tuple(sorted(names))) for host, names in sorted(servers.items()) if len(names) > 1)


def host_of(uri: str) -> str | None:
    """The host of a `window://` or `dpe://` URI; None for others, and for invalid ones."""
    scheme = uri.partition(":")[0].lower()
    try:
        if scheme == "window":
            return parse_window_uri(uri).uri.host
        if scheme == "dpe":
            return parse_dpe_uri(uri).host
    except ValueError:
        return None
    return None
