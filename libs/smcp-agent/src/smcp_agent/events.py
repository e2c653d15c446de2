"""Typed events of the office, and the streams that carry them to the application."""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from smcp_proto import schemas

STREAM_LENGTH: Final = 1024
"""Unread events that are kept; above it the oldest are dropped, and `EventsDropped` says how many."""


@dataclass(frozen=True)
class Event:
    """An event of `SmcpAgent.events`."""


@dataclass(frozen=True)
class ComputerEvent(Event):
    """An event about one Computer."""

    computer: str


class ComputerEntered(ComputerEvent):
    """A Computer came into the office; `ToolsChanged` follows."""


class ComputerLeft(ComputerEvent):
    """A Computer left the office; its tools are gone from `tools()`."""


@dataclass(frozen=True)
class ToolsChanged(ComputerEvent):
    """A Computer's tools changed."""

    tools: tuple[schemas.SMCPTool, ...]


class ConfigChanged(ComputerEvent):
    """A Computer's configuration changed; `get_config` gives the new one."""


class DesktopChanged(ComputerEvent):
    """A Computer's desktop changed; `desktop` gives the new one."""


class FinderChanged(ComputerEvent):
    """A Computer's documents changed; `finder` gives the new ones."""


@dataclass(frozen=True)
class ResourcesChanged(ComputerEvent):
    """A Computer's list of resources changed: that of one MCP server, or of any (None)."""

    server: str | None = None


@dataclass(frozen=True)
class ResourceUpdated(ComputerEvent):
    """A resource that was subscribed to changed, or may have: nothing was heard of it for a while."""

    uri: str
    server: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class CapabilitiesChanged(ComputerEvent):
    """A Computer's resource capabilities changed."""

    capabilities: schemas.Capabilities


@dataclass(frozen=True)
class Notified(Event):
    """Any other notification of the office, as it came."""

    event: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Disconnected(Event):
    """The connection broke; the agent reconnects by itself."""

    reason: str


@dataclass(frozen=True)
class RejoinRefused(Event):
    """Connected again, but the office does not take the Agent back (yet); it keeps asking."""

    why: str


@dataclass(frozen=True)
class Reconnected(Event):
    """Back in the office; the events for what changed meanwhile came before this one."""

    url: str
    """Without the login that it may have."""


@dataclass(frozen=True)
class EventsDropped(Event):
    """This stream was not read for so long that `count` of its oldest events are gone."""

    count: int


class EventStream(AsyncIterator[Event]):
    """For `async for`; ends when the agent is closed."""

    def __init__(self, length: int = STREAM_LENGTH) -> None:
        self._waiting: deque[Event] = deque(maxlen=length)
        self._dropped = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Events that could be read without waiting."""
        return len(self._waiting)

    def push(self, event: Event) -> None:
        if not self._closed:
            self._dropped += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(event)
            self._changed.set()

    def close(self) -> None:
        """End the stream after what is waiting in it."""
        self._closed = True
        self._changed.set()

    async def __anext__(self) -> Event:
        while True:
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                return EventsDropped(dropped)
            if self._waiting:
                return self._waiting.popleft()
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()


class EventHub:
    """Carries each event to all live streams and all callbacks."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()
        self._callbacks: dict[object, Callable[[Event], None]] = {}
        self._closed = False

    def publish(self, event: Event) -> bool:
        """Whether anybody listens."""
        for stream in list(self._streams):
            stream.push(event)
        loop = asyncio.get_running_loop()
        for callback in self._callbacks.values():
            # of its own in the loop: what it raises is reported there and disturbs nobody
            loop.call_soon(callback, event)
        return bool(self._streams or self._callbacks)

    def stream(self) -> EventStream:
        stream = EventStream()
        if self._closed:
            stream.close()
        self._streams.add(stream)
        return stream

    def call(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        key = object()
        self._callbacks[key] = callback

        def stop() -> None:
            self._callbacks.pop(key, None)

        return stop

    def close(self) -> None:
        self._closed = True
        for stream in list(self._streams):
            stream.close()


def event_of(name: str, data: Mapping[str, Any]) -> ComputerEvent | Notified:
    """The event for a notification; `Notified` where it is about something else, or malformed."""
    event: ComputerEvent | None = None
    said: Any
    with suppress(ValidationError):
        match name:
            case "notify:update_desktop":
                event = DesktopChanged(schemas.UpdateComputerConfigReq.model_validate(data).computer)
            case "notify:update_finder":
                event = FinderChanged(schemas.UpdateComputerConfigReq.model_validate(data).computer)
            case "notify:update_capabilities":
                said = schemas.UpdateCapabilitiesReq.model_validate(data)
                event = CapabilitiesChanged(said.computer, said.capabilities)
            case "notify:resources/list_changed":
                said = schemas.ResourceListChangedNotification.model_validate(data)
                event = ResourcesChanged(said.computerId, said.serverId)
            case "notify:resources/updated":
                said = schemas.ResourceUpdatedNotification.model_validate(data)
                resource = said.payload.params
                event = ResourceUpdated(said.computerId, resource.uri, said.serverId, resource.title)
    return event if event is not None and event.computer else Notified(name, data)
