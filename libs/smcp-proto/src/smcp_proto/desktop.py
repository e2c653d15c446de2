"""What an MCP server says of a window in `annotations` and `_meta` (desktop.txt, Window 资源元数据)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from smcp_proto.schemas.tools import Desktop
from smcp_proto.sorting import is_instant, server_order
from smcp_proto.uris import MAX_URI_LENGTH, parse_window_uri
from smcp_proto.warnings import Rule, ServerWarning, server_warning, type_name

DEFAULT_PRIORITY: Final = 0.0
ROLES: Final = frozenset({"user", "assistant"})
"""What MCP lets an audience be made of."""
_USUAL: Final = (["assistant"], ["user", "assistant"])


class WindowMetadata(NamedTuple):
    """What the desktop is ordered by. A missing value and null are the same."""

    priority: float = DEFAULT_PRIORITY
    """From 0 to 1, the highest first; compared within one MCP server only."""
    fullscreen: bool = False
    """The first such window of an MCP server is the only one of it."""


def read_metadata(server: str, resource: Mapping[str, Any]) -> tuple[WindowMetadata, tuple[ServerWarning, ...]]:
    """Read `annotations` and `_meta` of an item of `resources/list`, of any JSON types.

    What breaks a rule counts as its default and is a warning. `audience` and `lastModified` decide nothing.
    """
    found: list[tuple[Rule, str]] = []
    annotations = _object(resource, "annotations", Rule.ANNOTATIONS_TYPE, found)
    meta = _object(resource, "_meta", Rule.META_TYPE, found)
    metadata = WindowMetadata(_priority(annotations.get("priority"), found), _fullscreen(meta.get("fullscreen"), found))
    _check_audience(annotations.get("audience"), found)
    _check_last_modified(annotations.get("lastModified"), found)
    if not found:
        return metadata, ()
    return metadata, tuple(server_warning(server, resource.get("uri"), rule, message) for rule, message in found)


def usual_metadata(resource: dict[str, Any]) -> tuple[float, bool] | None:
    """Priority and fullscreen as `read_metadata` reads them where it finds nothing wrong; None: ask it.

    That does for most resources, and much quicker: so it is a plain tuple.
    """
    annotations, meta = resource.get("annotations"), resource.get("_meta")
    priority, fullscreen = DEFAULT_PRIORITY, False
    if annotations is not None:
        if type(annotations) is not dict:
            return None
        priority = annotations.get("priority", DEFAULT_PRIORITY)
        if type(priority) is not float or not 0 <= priority <= 1:
            return None
        audience, modified = annotations.get("audience"), annotations.get("lastModified")
        if audience is not None and audience not in _USUAL:
            return None
        if modified is not None and (type(modified) is not str or not is_instant(modified)):
            return None
    if meta is not None:
        if type(meta) is not dict:
            return None
        fullscreen = meta.get("fullscreen", False)
        if type(fullscreen) is not bool:
            return None
    return priority, fullscreen


def _object(resource: Mapping[str, Any], name: str, rule: Rule, found: list[tuple[Rule, str]]) -> Mapping[str, Any]:
    value = resource.get(name)
    if isinstance(value, (dict, Mapping)):  # nearly always a dict, which is asked about first
        return value
    if value is not None:
        found.append((rule, f"{name} is {type_name(value)}, not an object; it counts as missing"))
    return {}


def _priority(value: Any, found: list[tuple[Rule, str]]) -> float:
    if value is None:
        return DEFAULT_PRIORITY
    if isinstance(value, bool) or not isinstance(value, int | float):
        found.append((Rule.PRIORITY_TYPE, f"priority is {type_name(value)}, not a number; it counts as 0.0"))
        return DEFAULT_PRIORITY
    if not 0 <= value <= 1:  # NaN, too
        found.append((Rule.PRIORITY_RANGE, "priority is not from 0 to 1; it counts as 0.0"))
        return DEFAULT_PRIORITY
    return float(value)


def _fullscreen(value: Any, found: list[tuple[Rule, str]]) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    found.append((Rule.FULLSCREEN_TYPE, f"fullscreen is {type_name(value)}, not a boolean; it counts as false"))
    return False


def _check_audience(value: Any, found: list[tuple[Rule, str]]) -> None:
    if value is None or value in _USUAL:
        return
    if not isinstance(value, list | tuple) or not all(isinstance(role, str) and role in ROLES for role in value):
        found.append((Rule.AUDIENCE_TYPE, "audience is not a list of user and assistant; the window is kept"))
    elif "assistant" not in value:
        found.append((Rule.AUDIENCE_WITHOUT_ASSISTANT, "audience does not name the assistant; the window is kept"))


def _check_last_modified(value: Any, found: list[tuple[Rule, str]]) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        found.append((Rule.LAST_MODIFIED_TYPE, f"lastModified is {type_name(value)}, not a string"))
    elif not is_instant(value):
        found.append((Rule.LAST_MODIFIED_UNREADABLE, "lastModified is no instant of ISO 8601"))


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
