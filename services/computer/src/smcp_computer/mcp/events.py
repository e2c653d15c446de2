"""Events of the MCP servers and the notifications that they are made from."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import mcp_types as types

from smcp_proto.uris.parts import MAX_URI_LENGTH

_log = logging.getLogger("smcp_computer.mcp")


@dataclass(frozen=True, slots=True)
class ServerReady:
    """It was started (again), and answers."""

    server: str


@dataclass(frozen=True, slots=True)
class ServerGone:
    """It answers no more. Told once for each `ServerReady`."""

    server: str


@dataclass(frozen=True, slots=True)
class ResourcesChanged:
    """It said that its list of resources changed."""

    server: str


@dataclass(frozen=True, slots=True)
class ResourceUpdated:
    """It said that the contents of a resource changed; or that may be, since nobody could say so for a while."""

    server: str
    uri: str


@dataclass(frozen=True, slots=True)
class ResourcesSubscribed:
    """It has agreed to tell of resources from now on. What changed before that it told nobody."""

    server: str
    uris: frozenset[str]


@dataclass(frozen=True, slots=True)
class ResourcesUnsubscribed:
    """It had agreed to tell of resources, and tells of them no more, though nobody asked for that."""

    server: str
    uris: frozenset[str]


ServerEvent = (
    ServerReady | ServerGone | ResourcesChanged | ResourceUpdated | ResourcesSubscribed | ResourcesUnsubscribed
)
Listener = Callable[[ServerEvent], None]


class ServerEvents:
    """Passes events on, in their order, to the listeners in theirs. A listener must not block, nor raise.

    A `ResourceUpdated` whose URI the wire does not carry goes no further: nobody can have subscribed to it. That is
    said once in each life of its server.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._said: set[str] = set()
        """Servers of whose URIs it was said."""

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear of all that happens from now on. Returns what ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def tell(self, event: ServerEvent) -> None:
        """Tell every listener, in the order in which they came. What has a URI that cannot be carried is not told."""
        match event:
            case ResourceUpdated(server, uri) if not _is_carried(uri):
                if server not in self._said:
                    self._said.add(server)
                    _log.warning("MCP server %r: tells of changes with URIs that are none, or too long", server)
                return
            case ServerReady(server):
                self._said.discard(server)
            case _:
                pass
        for listener in tuple(self._listeners):
            listener(event)


def _is_carried(uri: str) -> bool:
    """Whether the wire takes it (`smcp_proto.schemas.resources.Uri`)."""
    if not 0 < len(uri) <= MAX_URI_LENGTH:
        return False
    try:
        uri.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Told:
    """Called in the connection's tasks, so they must not block. What is told twice says the same."""

    tools_changed: Callable[[], None]
    """The list of tools changed."""
    resources_changed: Callable[[], None] = lambda: None
    """The list of resources changed."""
    resource_updated: Callable[[str], None] = lambda uri: None
    """Given the URI of a resource whose contents changed; it may lie below the one that was subscribed to."""
    untold: Callable[[frozenset[str]], None] = lambda uris: None
    """Given URIs that were subscribed to, and of which the server tells no more, unasked."""

    def notified(self, message: object) -> None:
        """A notification of a server of the 2025 era; everything else is ignored."""
        match message:
            case types.ToolListChangedNotification():
                self.tools_changed()
            case types.ResourceListChangedNotification():
                self.resources_changed()
            case types.ResourceUpdatedNotification(params=params):
                self.resource_updated(params.uri)
            case _:
                pass
