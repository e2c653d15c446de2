"""What happens in the office, as typed events, and the streams that carry them to the application."""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from pydantic import ValidationError

from smcp_agent.rpc import Model
from smcp_proto.errors import SmcpError
from smcp_proto.schemas import (
    Capabilities,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SMCPTool,
    UpdateCapabilitiesReq,
    UpdateComputerConfigReq,
)

STREAM_LENGTH: Final = 1024
"""Events that wait for a reader who does not read; then the oldest go, and `EventsDropped` says how many."""


@dataclass(frozen=True, slots=True)
class ComputerEntered:
    """A Computer came into the office; its tools are being fetched (`ToolsChanged` follows)."""

    computer: str


@dataclass(frozen=True, slots=True)
class ComputerLeft:
    """A Computer left the office; its tools are gone from `tools()`."""

    computer: str


@dataclass(frozen=True, slots=True)
class ToolsChanged:
    """A Computer's tools are known for the first time, or are others than before."""

    computer: str
    tools: tuple[SMCPTool, ...]


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """A Computer says that its configuration changed; `get_config` gives the new one."""

    computer: str


@dataclass(frozen=True, slots=True)
class DesktopChanged:
    """A Computer says that its desktop changed; `desktop` gives the new one."""

    computer: str


@dataclass(frozen=True, slots=True)
class FinderChanged:
    """A Computer says that its documents changed; `finder` gives the new ones."""

    computer: str


@dataclass(frozen=True, slots=True)
class ResourcesChanged:
    """A Computer says that its list of resources changed: that of one MCP server, or of any (None)."""

    computer: str
    server: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceUpdated:
    """A resource that was subscribed to changed, or may have: nothing was heard of it for a while."""

    computer: str
    uri: str
    server: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionRefused:
    """A Computer that lost a subscription does not make it again (yet): `error` says why.

    It is asked again when it says that something changed there.
    """

    computer: str
    uri: str
    server: str | None
    error: SmcpError


@dataclass(frozen=True, slots=True)
class CapabilitiesChanged:
    """A Computer says what it can do now beside tools."""

    computer: str
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class Notified:
    """Any other notification of the office, as it came."""

    event: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection broke; the agent is coming back by itself."""

    reason: str


@dataclass(frozen=True, slots=True)
class RejoinRefused:
    """Connected again, but the office does not take the Agent back (yet); it keeps asking."""

    why: str


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Back in the office; who came and went meanwhile, and which tools are others, has been told.

    Desktops, documents and resources may have changed: what is asked for from now on is not older than this.
    """

    url: str


@dataclass(frozen=True, slots=True)
class EventsDropped:
    """This stream was not read for so long that `count` of its oldest events are gone."""

    count: int


Event = (
    ComputerEntered
    | ComputerLeft
    | ToolsChanged
    | ConfigChanged
    | DesktopChanged
    | FinderChanged
    | ResourcesChanged
    | ResourceUpdated
    | SubscriptionRefused
    | CapabilitiesChanged
    | Notified
    | Disconnected
    | RejoinRefused
    | Reconnected
    | EventsDropped
)


class EventStream(AsyncIterator[Event]):
    """Events from the moment the stream was opened, in order; ends when the agent is closed.

    Iterate it with `async for`. Each stream has its own queue; one that nobody holds any more costs nothing.
    """

    def __init__(self, length: int = STREAM_LENGTH) -> None:
        self._waiting: deque[Event] = deque()
        self._length = length
        self._dropped = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Events that could be read without waiting."""
        return len(self._waiting)

    def push(self, event: Event) -> None:
        """Put an event into the queue. Where that is full the oldest goes, and `EventsDropped` tells of it."""
        if self._closed:
            return
        if len(self._waiting) >= self._length:
            self._waiting.popleft()
            self._dropped += 1
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class EventHub:
    """Carries each event to all streams that somebody holds, and to all callbacks."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()
        self._callbacks: list[Callable[[Event], None]] = []
        self._closed = False

    def publish(self, event: Event) -> None:
        """Give an event to every stream, and have every callback called with it soon. Does not wait."""
        for stream in list(self._streams):
            stream.push(event)
        loop = asyncio.get_running_loop()
        for callback in self._callbacks:
            # of its own in the loop: what it raises is reported there and disturbs nobody
            loop.call_soon(callback, event)

    def stream(self) -> EventStream:
        """A stream of what happens from now on."""
        stream = EventStream()
        if self._closed:
            stream.close()
        self._streams.add(stream)
        return stream

    def call(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` from now on; returns what ends that."""
        self._callbacks.append(callback)

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()


ComputerNotice = CapabilitiesChanged | DesktopChanged | FinderChanged | ResourcesChanged | ResourceUpdated


def notice_of(event: str, data: Mapping[str, Any]) -> ComputerNotice | None:
    """The event that a notification is; None for one that is about something else, or not what it should be."""
    match event:
        case "notify:update_desktop":
            return DesktopChanged(said.computer) if (said := _read(UpdateComputerConfigReq, data)) else None
        case "notify:update_finder":
            return FinderChanged(said.computer) if (said := _read(UpdateComputerConfigReq, data)) else None
        case "notify:update_capabilities":
            can = _read(UpdateCapabilitiesReq, data)
            return CapabilitiesChanged(can.computer, can.capabilities) if can else None
        case "notify:resources/list_changed":
            listed = _read(ResourceListChangedNotification, data)
            return ResourcesChanged(listed.computerId, listed.serverId) if listed and listed.computerId else None
        case "notify:resources/updated":
            updated = _read(ResourceUpdatedNotification, data)
            if updated is None or updated.computerId is None:
                return None
            what = updated.payload.params
            return ResourceUpdated(updated.computerId, what.uri, updated.serverId, what.title)
        case _:
            return None


def _read(model: type[Model], data: Mapping[str, Any]) -> Model | None:
    try:
        return model.model_validate(data)
    except ValidationError:
        return None
