"""States and events of the MCP servers, and warnings about them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smcp_computer.redaction import Redactor
from smcp_proto.printable import printable
from smcp_proto.uris import MAX_URI_LENGTH

_log = logging.getLogger("smcp_computer.mcp")

MOST_WARNINGS: Final = 200
"""About one MCP server, in one life of it: it may cause ever new ones."""


class State(StrEnum):
    STARTING = "starting"
    """It is started, for the first time or again, and does not answer yet."""
    READY = "ready"
    DEGRADED = "degraded"
    """It runs, and something is wrong with it: the reason says what."""
    BACKOFF = "backoff"
    """It ended or could not be started, and is started again after a pause."""
    STOPPED = "stopped"
    DISABLED = "disabled"
    FAILED = "failed"
    """It cannot run as it is configured, and is not tried again before that changes."""


@dataclass(frozen=True)
class ServerStatus:
    """What a Computer tells of a server: to its user, to `/metrics`, and in part to Agents."""

    name: str
    state: State
    reason: str
    """Why it is not ready; empty where it is."""
    since: float
    """When it came into this state, in seconds since the epoch."""
    restarts: int = 0
    """How many times it became ready again."""
    pid: int | None = None
    """None: it does not run, or is reached over HTTP."""
    cpu_s: float | None = None
    memory_bytes: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerEvent:
    """An event of one MCP server."""

    server: str


class ServerReady(ServerEvent):
    """It has started (again) and answers."""


class ServerGone(ServerEvent):
    """It does not answer any more. Comes once for each `ServerReady`."""


class ServerRemoved(ServerEvent):
    """It is not configured any more, or as another one: what is kept about it has no use. Comes after `ServerGone`."""


class ToolsChanged(ServerEvent):
    """Its list of tools changed. Only its supervisor gets this."""


class ResourcesChanged(ServerEvent):
    """Its list of resources changed."""


class ResourcesListed(ServerEvent):
    """Its list of resources was taken anew."""


@dataclass(frozen=True)
class ResourceUpdated(ServerEvent):
    """The contents of a resource changed, or may have changed while there was no stream of changes."""

    uri: str


@dataclass(frozen=True)
class ResourceSubscribed(ServerEvent):
    """It announces changes of this resource from now on. Earlier changes were not announced."""

    uri: str


@dataclass(frozen=True)
class ResourcesUnsubscribed(ServerEvent):
    """It has stopped announcing changes of these resources by itself."""

    uris: frozenset[str]


class ServerEvents:
    """Passes events on, in their order, to the listeners in theirs. A listener must not block, nor raise.

    It also logs warnings, each once in a life of its server. A `ResourceUpdated` whose URI the wire does not carry is a
    warning, and goes no further.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        self.shown = (redactor or Redactor()).shown
        """What a warning shows of a URI."""
        self._listeners: list[Callable[[ServerEvent], None]] = []
        self._warned: dict[str, set[str]] = {}
        """By server."""

    def listen(self, listener: Callable[[ServerEvent], None]) -> None:
        self._listeners.append(listener)

    def tell(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri) if (
                not 0 < len(uri) <= MAX_URI_LENGTH or uri != uri.encode(errors="ignore").decode()
            ):
                self.warn(server, "announces changes of URIs that are invalid or too long")
                return
            case ServerReady(server) | ServerRemoved(server):
                self._warned.pop(server, None)
        for listener in self._listeners:
            listener(event)

    def warn(self, server: str, *causes: str) -> None:
        """Log what was not logged in this life of the server, without control characters, which a server may send."""
        warned = self._warned.setdefault(server, set())
        for what in causes:
            if what in warned or len(warned) > MOST_WARNINGS:
                continue
            warned.add(what)
            if len(warned) > MOST_WARNINGS:
                _log.warning("MCP server %r: further warnings are not logged", server)
            else:
                _log.warning("MCP server %r: %s", server, printable(what))
