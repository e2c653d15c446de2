"""Makes a desktop of windows, by what their MCP servers say of them (desktop.txt, Window 资源元数据)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from smcp_proto.schemas.tools import Desktop
from smcp_proto.sorting import instant, server_order
from smcp_proto.uris import parse_window_uri
from smcp_proto.validation import type_name

MAX_WARNED_URI: Final = 256
"""Characters of a URI that a warning names."""
UNREAD: Final[Sequence[Mapping[str, Any]]] = ({"text": ""},)
"""The contents of a window that is not read yet, for `is_certain`."""

_Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Window:
    """A window as its MCP server gave it. Nothing in it is trusted to have the type that MCP says."""

    server: str
    resource: Mapping[str, Any]
    """An item of `resources/list`: `uri`, `annotations`, `_meta`, …"""
    contents: Sequence[Mapping[str, Any]]
    """`contents` of `resources/read`: each with `text` or `blob`."""


class ServerWarning(NamedTuple):
    """A problem with a window, for the log."""

    server: str
    uri: str
    """As the server wrote it, at most `MAX_WARNED_URI` characters of it; empty where it gave none."""
    message: str


class OrganizedDesktop(NamedTuple):
    """The windows for the Agent, and warnings."""

    desktops: list[Desktop]
    warnings: tuple[ServerWarning, ...]
    """In the order of the windows."""
    sources: tuple[tuple[str, str], ...] = ()
    """The MCP server and the URI of each of `desktops`."""


class _Shown(NamedTuple):
    server: str
    uri: str
    texts: Sequence[str]
    priority: float
    fullscreen: bool
    unread: bool


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
    ordered = _ordered(windows, history, warnings)[:size]
    texts = ["\n\n".join((each.uri, *each.texts)) if any(each.texts) else each.uri for each in ordered]
    return OrganizedDesktop(texts, tuple(warnings), tuple((each.server, each.uri) for each in ordered))


def is_certain(windows: Sequence[Window], size: int | None, history: Sequence[str]) -> bool:
    """Whether the desktop is the same whatever the `UNREAD` windows hold: none is on it if each has a text."""
    return not any(shown.unread for shown in _ordered(windows, history, [])[:size])


def _ordered(windows: Sequence[Window], history: Sequence[str], warnings: list[ServerWarning]) -> list[_Shown]:
    servers: dict[str, list[_Shown]] = {}
    for window in windows:
        shown = _shown(window, warnings)
        if shown is not None:
            servers.setdefault(window.server, []).append(shown)
    ordered = []
    for server in server_order(servers, history):
        own = servers[server]
        fullscreen = next((window for window in own if window.fullscreen), None)
        # stable: windows of one priority stay in order
        ordered += [fullscreen] if fullscreen else sorted(own, key=attrgetter("priority"), reverse=True)
    return ordered


def _shown(window: Window, warnings: list[ServerWarning]) -> _Shown | None:
    sent: object = window.resource
    resource = sent if isinstance(sent, Mapping) else {}
    given = resource.get("uri")

    def warn(message: str) -> None:
        named = given[:MAX_WARNED_URI] if isinstance(given, str) else ""
        warnings.append(ServerWarning(window.server, named, message))

    uri = _identity(given, warn)
    texts = [] if uri is None else _texts(window.contents, warn)
    if uri is None or not texts:
        return None
    priority, fullscreen = read_metadata(resource, warn)
    return _Shown(window.server, uri, texts, priority, fullscreen, window.contents is UNREAD)


def _identity(given: object, warn: _Warn) -> str | None:
    """The URI as the server wrote it, without a query; None where it is not a window's."""
    if not isinstance(given, str):
        warn(f"its URI is {type_name(given)}; it is skipped")
        return None
    try:
        parse_window_uri(given)
    except ValueError as error:
        warn(f"{error}; it is skipped")
        return None
    uri, mark, _ = given.partition("?")
    if mark:
        warn("query: a window URI carries none; it was dropped")
    return uri


def _texts(contents: Any, warn: _Warn) -> list[str]:
    if not isinstance(contents, list | tuple):
        if contents is not None:
            warn(f"its contents are {type_name(contents)}, no list; it is skipped")
        return []
    items = [item if isinstance(item, Mapping) else {} for item in contents]
    others = [item for item in items if not isinstance(item.get("text"), str)]
    blobs = sum(item.get("blob") is not None for item in others)
    if blobs:
        warn("binary contents cannot be shown; they are skipped")
    if blobs < len(others):
        warn("contents that are neither text nor blob are skipped")
    return [text for item in items if isinstance(text := item.get("text"), str)]


def read_metadata(resource: Mapping[str, Any], warn: _Warn) -> tuple[float, bool]:
    """Priority (0 to 1, 0 by default) and fullscreen (false by default) of an item of `resources/list`. A wrong type or
    value counts as the default, and is warned about. `audience` and `lastModified` decide nothing."""
    annotations, meta = _object(resource, "annotations", warn), _object(resource, "_meta", warn)
    priority = _priority(annotations.get("priority"), warn)
    fullscreen = meta.get("fullscreen")
    if not isinstance(fullscreen, bool | None):
        warn(f"fullscreen is {type_name(fullscreen)}, not a boolean; it counts as false")
        fullscreen = False
    audience, modified = annotations.get("audience"), annotations.get("lastModified")
    if audience is not None:
        if not isinstance(audience, list | tuple) or any(role not in ("user", "assistant") for role in audience):
            warn("audience is not a list of user and assistant; the window is kept")
        elif "assistant" not in audience:
            warn("audience does not name the assistant; the window is kept")
    if not isinstance(modified, str | None):
        warn(f"lastModified is {type_name(modified)}, not a string")
    elif modified is not None and instant(modified) is None:
        warn("lastModified is not an ISO 8601 instant")
    return priority, bool(fullscreen)


def _object(resource: Mapping[str, Any], name: str, warn: _Warn) -> Mapping[str, Any]:
    value = resource.get(name)
    if isinstance(value, Mapping):
        return value
    if value is not None:
        warn(f"{name} is {type_name(value)}, not an object; it counts as missing")
    return {}


def _priority(value: Any, warn: _Warn) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        warn(f"priority is {type_name(value)}, not a number; it counts as 0.0")
        return 0.0
    if not 0 <= value <= 1:  # NaN, too
        warn("priority is not from 0 to 1; it counts as 0.0")
        return 0.0
    return float(value)
