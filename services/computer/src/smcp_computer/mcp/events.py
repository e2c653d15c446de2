"""Events of the MCP servers and the notifications that they are made from."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import mcp_types as types

from smcp_proto.uris import MAX_URI_LENGTH

_log = logging.getLogger("smcp_computer.mcp")


@dataclass(frozen=True)
class ServerEvent:
    """What happens at one MCP server."""

    server: str


class ServerReady(ServerEvent):
    """It has started (again) and answers."""


class ServerGone(ServerEvent):
    """It does not answer any more. Comes once for each `ServerReady`."""


class ToolsChanged(ServerEvent):
    """Its list of tools changed. Only its supervisor gets this."""


class ResourcesChanged(ServerEvent):
    """Its list of resources changed."""


@dataclass(frozen=True)
class ResourceUpdated(ServerEvent):
    """The contents of a resource changed, or may have changed while there was no stream of changes."""

    uri: str


@dataclass(frozen=True)
class ResourcesSubscribed(ServerEvent):
    """It announces changes of these resources from now on. Earlier changes were not announced."""

    uris: frozenset[str]


@dataclass(frozen=True)
class ResourcesUnsubscribed(ServerEvent):
    """It does not announce changes of these resources any more, though nobody unsubscribed."""

    uris: frozenset[str]


class ServerEvents:
    """Passes events on, in their order, to the listeners in theirs. A listener must not block, nor raise.

    A `ResourceUpdated` whose URI the wire does not carry goes no further, with one warning in each life of its server.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[ServerEvent], None]] = []
        self._warned: set[str] = set()
        """Servers."""

    def listen(self, listener: Callable[[ServerEvent], None]) -> None:
        self._listeners.append(listener)

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
        for listener in self._listeners:
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
