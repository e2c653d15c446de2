"""What an MCP server tells by itself, whatever its era, and who is called for it."""

from collections.abc import Callable
from dataclasses import dataclass

import mcp_types as types


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
