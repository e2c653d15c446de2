"""Events of the MCP servers and the notifications that they are made from."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import mcp_types as types

from smcp_proto.uris import MAX_URI_LENGTH

_log = logging.getLogger("smcp_computer.mcp")


@dataclass(frozen=True, slots=True)
class ServerReady:
    """It has started (again) and answers."""

    server: str


@dataclass(frozen=True, slots=True)
class ServerGone:
    """It does not answer any more. Comes once for each `ServerReady`."""

    server: str


@dataclass(frozen=True, slots=True)
class ToolsChanged:
    """Its list of tools changed. Only its supervisor gets this."""

    server: str


@dataclass(frozen=True, slots=True)
class ResourcesChanged:
    """Its list of resources changed."""

    server: str


@dataclass(frozen=True, slots=True)
class ResourceUpdated:
    """The contents of a resource changed, or may have changed while there was no stream of changes."""

    server: str
    uri: str


@dataclass(frozen=True, slots=True)
class ResourcesSubscribed:
    """It announces changes of these resources from now on. Earlier changes were not announced."""

    server: str
    uris: frozenset[str]


@dataclass(frozen=True, slots=True)
class ResourcesUnsubscribed:
    """It does not announce changes of these resources any more, though nobody unsubscribed."""

    server: str
    uris: frozenset[str]


ServerEvent = (
    ToolsChanged
    | ServerReady
    | ServerGone
    | ResourcesChanged
    | ResourceUpdated
    | ResourcesSubscribed
    | ResourcesUnsubscribed
)
Listener = Callable[[ServerEvent], None]


class ServerEvents:
    """Passes events on, in their order, to the listeners in theirs. A listener must not block, nor raise.

    A `ResourceUpdated` whose URI the wire does not carry goes no further, with one warning in each life of its server.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._warned: set[str] = set()
        """Servers."""

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for each event from now on. Returns what ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def tell(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri) if not _is_carried(uri):
                if server not in self._warned:
                    self._warned.add(server)
                    _log.warning("MCP server %r: announces changes of URIs that are invalid or too long", server)
                return
            case ServerReady(server):
                self._warned.discard(server)
            case _:
                pass
        for listener in tuple(self._listeners):
            listener(event)


def _is_carried(uri: str) -> bool:
    if not 0 < len(uri) <= MAX_URI_LENGTH:
        return False
    try:
        uri.encode()
    except UnicodeEncodeError:
        return False
    return True


def event_of(server: str, message: object) -> ServerEvent | None:
    """The event for a notification of a server of the 2025 era; None: one that we do not follow."""
    match message:
        case types.ToolListChangedNotification():
            return ToolsChanged(server)
        case types.ResourceListChangedNotification():
            return ResourcesChanged(server)
        case types.ResourceUpdatedNotification(params=params):
            return ResourceUpdated(server, params.uri)
        case _:
            return None
