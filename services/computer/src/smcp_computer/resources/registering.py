"""Asks each MCP server, once in each of its lives, which templates it has: their hosts count for conflicts.

A server need not list a single resource of its host: `dpe://host/{doc_ref}` may be all that it offers. Templates are
listed only when somebody asks for them (see `ResourceIndex`), so that nobody would hear of its conflict before.
"""

import asyncio
import logging
from collections.abc import Iterable

from smcp_computer.mcp.errors import ServerError
from smcp_computer.mcp.events import ServerEvent, ServerEvents, ServerGone, ServerReady
from smcp_computer.resources.conflicts import HostConflicts
from smcp_computer.resources.index import ResourceIndex

_log = logging.getLogger("smcp_computer.resources")


class TemplateHosts:
    """`run` must be running.

    Args:
        servers: the names of the MCP servers.
    """

    def __init__(
        self, servers: Iterable[str], index: ResourceIndex, conflicts: HostConflicts, events: ServerEvents
    ) -> None:
        self._ready = {server: asyncio.Event() for server in servers}
        self._index = index
        self._conflicts = conflicts
        events.listen(self._on_event)

    async def run(self) -> None:
        """Ask the servers that became ready, side by side, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for server, ready in self._ready.items():
                tasks.create_task(self._follow(server, ready), name=f"templates:{server}")

    async def _follow(self, server: str, ready: asyncio.Event) -> None:
        while True:
            await ready.wait()
            ready.clear()
            try:
                # not by way of the index: templates that are known there are told to be out of date with each list
                found = await self._index.connection(server).all_templates()
            except ServerError as error:  # it has no templates, or no resources; a warning would be of no use
                _log.debug("the templates of MCP server %r are not known: it %s", server, error.what)
                continue
            self._conflicts.registered_templates(server, [item["uriTemplate"] for item in found.items])

    def _on_event(self, event: ServerEvent) -> None:
        ready = self._ready.get(event.server)
        if ready is None:
            return
        match event:
            case ServerReady():
                ready.set()
            case ServerGone():
                ready.clear()
                self._conflicts.registered_templates(event.server, ())
            case _:
                pass
