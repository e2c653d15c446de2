"""What happens at the MCP servers, for those of this process who listen."""

from collections.abc import Callable
from dataclasses import dataclass


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


ServerEvent = ServerReady | ServerGone | ResourcesChanged | ResourceUpdated
Listener = Callable[[ServerEvent], None]


class ServerEvents:
    """Passes events on, in their order, to the listeners in theirs. A listener must not block, nor raise."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear of all that happens from now on. Returns what ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def tell(self, event: ServerEvent) -> None:
        for listener in tuple(self._listeners):
            listener(event)
