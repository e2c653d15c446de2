"""The desktop of a Computer: the windows of its MCP servers, filtered, ordered and cut (desktop.txt, 组织策略)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from smcp_proto.schemas.desktop import Desktop
from smcp_proto.server_order import server_order
from smcp_proto.uris import parse_window_uri
from smcp_proto.uris.parts import MAX_URI_LENGTH
from smcp_proto.warnings import Rule, ServerWarning, server_warning, type_name
from smcp_proto.window_metadata import read_metadata, usual_metadata

_CHARACTERS: Final = "[A-Za-z0-9._~-]"
_PLAIN: Final = re.compile(
    f"window://{_CHARACTERS}++(?:/(?!/|$){_CHARACTERS}*+(?:%(?:[2-6][0-9A-Fa-f]|7[0-9A-Ea-e]){_CHARACTERS}*+)*+)*+",
    re.ASCII,
)
"""URIs without anything that the parser would refuse or drop: nearly all, and parsing them costs half of a desktop."""

_PRIORITY: Final = attrgetter("priority")


@dataclass(frozen=True, slots=True)
class Window:
    """A window as its MCP server gave it. Nothing in it is trusted to have the type that MCP says."""

    server: str
    """The MCP server's name in its Computer's configuration."""
    resource: Mapping[str, Any]
    """An item of `resources/list`: `uri`, `annotations`, `_meta`, …"""
    contents: Sequence[Mapping[str, Any]]
    """`contents` of `resources/read`: each with `text` or `blob`."""


@dataclass(frozen=True, slots=True)
class OrganizedDesktop:
    """What the Agent gets, and what was wrong."""

    desktops: list[Desktop]
    warnings: tuple[ServerWarning, ...]
    """In the order of the windows."""
    sources: tuple[tuple[str, str], ...] = ()
    """Of each of `desktops` the MCP server and the URI."""


class _Shown(NamedTuple):
    """A window that has something to show."""

    server: str
    uri: str
    texts: Sequence[str]
    priority: float
    fullscreen: bool


def organize_desktop(windows: Sequence[Window], size: int | None, history: Sequence[str]) -> OrganizedDesktop:
    """Make a desktop of all windows.

    Args:
        windows: those of one MCP server in the order of its list.
        size: at most so many windows over all servers; 0 or less: none; None: all.
        history: the MCP servers of the tool calls, the oldest call first.

    Returns:
        The windows as text: servers by recent use and then by name, the windows of each by descending priority, or its
        first fullscreen window alone. Nothing that a server sent raises; what is wrong with it is a warning.
    """
    if size is not None and size <= 0:
        return OrganizedDesktop([], ())
    warnings: list[ServerWarning] = []
    servers: dict[str, list[_Shown]] = {}
    for window in windows:
        shown = _usual(window) or _shown(window, warnings)
        if shown is not None:
            servers.setdefault(window.server, []).append(shown)
    ordered = [shown for server in server_order(servers, history) for shown in _of_server(servers[server])][:size]
    return OrganizedDesktop(
        [_render(shown) for shown in ordered],
        tuple(warnings),
        tuple((shown.server, shown.uri) for shown in ordered),
    )


def _shown(window: Window, warnings: list[ServerWarning]) -> _Shown | None:
    """Step 1: None for a window without a valid URI, and for one without text."""
    resource: Any = window.resource
    given = resource.get("uri") if isinstance(resource, (dict, Mapping)) else None
    uri = _identity(window.server, given, warnings)
    if uri is None:
        return None
    texts = _texts(window, given, warnings)
    if not texts:
        return None
    metadata, found = read_metadata(window.server, resource)
    warnings += found
    return _Shown(window.server, uri, texts, metadata.priority, metadata.fullscreen)


def _usual(window: Window) -> _Shown | None:
    """Step 1 for one of which nothing has to be said, as nearly all are: at half the cost. None: ask `_shown`."""
    resource, contents = window.resource, window.contents
    if type(resource) is not dict or type(contents) is not list or len(contents) != 1:
        return None
    uri, item = resource.get("uri"), contents[0]
    if type(uri) is not str or len(uri) > MAX_URI_LENGTH or not _PLAIN.fullmatch(uri) or type(item) is not dict:
        return None
    text = item.get("text")
    if type(text) is not str:
        return None
    metadata = usual_metadata(resource)
    return None if metadata is None else _Shown(window.server, uri, (text,), metadata[0], metadata[1])


def _identity(server: str, given: object, warnings: list[ServerWarning]) -> str | None:
    """The URI as the server wrote it, without a query; None where it is no window's."""
    if not isinstance(given, str):
        warnings.append(
            server_warning(server, given, Rule.URI_INVALID, f"its URI is {type_name(given)}; it is skipped")
        )
        return None
    if len(given) <= MAX_URI_LENGTH and _PLAIN.fullmatch(given):
        return given
    try:
        parsed = parse_window_uri(given)
    except ValueError as error:
        warnings.append(server_warning(server, given, Rule.URI_INVALID, f"{error}; it is skipped"))
        return None
    warnings += [server_warning(server, given, Rule.URI_QUERY, warning) for warning in parsed.warnings]
    return given.partition("?")[0]


def _texts(window: Window, uri: object, warnings: list[ServerWarning]) -> list[str]:
    """The texts of a window; of what cannot be shown nothing but a warning is left."""
    contents: Any = window.contents
    if not isinstance(contents, list | tuple):
        if contents is not None:
            said = f"its contents are {type_name(contents)}, no list; it is skipped"
            warnings.append(server_warning(window.server, uri, Rule.CONTENTS_TYPE, said))
        return []
    items = [item if isinstance(item, (dict, Mapping)) else {} for item in contents]
    texts = [text for item in items if isinstance(text := item.get("text"), str)]
    if len(texts) < len(items):
        others = [item for item in items if not isinstance(item.get("text"), str)]
        blobs = sum(item.get("blob") is not None for item in others)
        if blobs:
            said = "binary contents cannot be shown; they are skipped"
            warnings.append(server_warning(window.server, uri, Rule.BLOB_SKIPPED, said))
        if blobs < len(others):
            said = "contents that are neither text nor blob are skipped"
            warnings.append(server_warning(window.server, uri, Rule.CONTENTS_TYPE, said))
    return texts


def _of_server(windows: list[_Shown]) -> Iterable[_Shown]:
    """Steps 3 and 4."""
    for window in windows:
        if window.fullscreen:
            return [window]
    return sorted(windows, key=_PRIORITY, reverse=True)  # which leaves those of one priority in their order


def _render(window: _Shown) -> Desktop:
    uri, texts = window.uri, window.texts
    if len(texts) == 1:  # nearly always, and quicker than joining
        return f"{uri}\n\n{texts[0]}" if texts[0] else uri
    return "\n\n".join((uri, *texts)) if any(texts) else uri
