"""What an MCP server says of a window in `annotations` and `_meta` (desktop.txt, Window 资源元数据)."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from smcp_proto.instants import is_instant
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
