"""`window://` URIs (desktop.txt, Window URI): pure identifiers of windows."""

from dataclasses import dataclass
from typing import Final

from smcp_proto.uris.parts import check_host, check_text, decode, encode, split_uri

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
