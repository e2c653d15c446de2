"""What Agents get beside tools (resources, desktop, finder), put together over the MCP servers."""

import asyncio
from collections.abc import Mapping
from functools import partial

from opentelemetry.metrics import get_meter

from smcp_bus.dispatch import Handler
from smcp_computer.announcing import CAPABILITIES, DESKTOP, FINDER, Announcer
from smcp_computer.desktop import Desktop
from smcp_computer.handlers.get_desktop import get_desktop
from smcp_computer.mcp.supervisor import Fleet
from smcp_computer.resources.capabilities import Capabilities
from smcp_computer.resources.changes import ResourceChanges
from smcp_computer.resources.conflicts import HostConflicts
from smcp_computer.resources.history import History
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.interests import Interests
from smcp_computer.resources.skipped import SkippedServers


class Context:
    """`run` must be running while it lasts.

    Args:
        announcer: told of what changes.
        read_s: how long the MCP servers may take over a desktop, in seconds.
        max_body: bytes that an answer may have on the bus.

    Attributes:
        history: to be told of each call of a tool.
    """

    def __init__(self, fleet: Fleet, announcer: Announcer, *, read_s: float, max_body: int) -> None:
        self.history = History()
        self.index = ResourceIndex(fleet.supervisors, fleet.events)
        self.interests = Interests(fleet.supervisors, fleet.events)
        self.skipped = SkippedServers(get_meter("smcp_computer"))
        self.capabilities = Capabilities(self.index, lambda: announcer.changed(CAPABILITIES))
        self._changes = ResourceChanges(
            self.index,
            self.interests,
            fleet.events,
            HostConflicts(),
            desktop_changed=lambda: announcer.changed(DESKTOP),
            finder_changed=lambda: announcer.changed(FINDER),
        )
        self._desktop = Desktop(
            self.index,
            self.history,
            self.skipped,
            read_s=read_s,
            max_body=max_body,
        )
        self._max_body = max_body
        fleet.events.listen(self._desktop.on_event)

    def handlers(self) -> Mapping[str, Handler]:
        """By event, their dependencies bound."""
        return {"client:get_desktop": partial(get_desktop, desktop=self._desktop, max_body=self._max_body)}

    async def run(self) -> None:
        """Follow the MCP servers, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.index.run(), name="index")
                tasks.create_task(self.interests.run(), name="interests")
        finally:
            await self._desktop.aclose()
