"""Asks each MCP server which templates it has, once it is ready and when its lists changed: their hosts count for
conflicts.

A server need not list a single resource of its host: `dpe://host/{doc_ref}` may be all that it offers. Templates are
listed only when somebody asks for them (see `ResourceIndex`), so that nobody would hear of its conflict before.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from smcp_computer.mcp.errors import RequestRefused, ServerError
from smcp_computer.mcp.events import ResourcesChanged, ServerEvent, ServerEvents, ServerGone, ServerReady
from smcp_computer.resources.conflicts import HostConflicts
from smcp_computer.resources.index import UNTOLD_S, ResourceIndex

_log = logging.getLogger("smcp_computer.resources")

PAUSE_S: Final = 1.0
"""A server that says all the time that its list changed is not asked more often than that: a warning has time."""


class TemplateHosts:
    """`run` must be running.

    Args:
        servers: the names of the MCP servers.
    """

    def __init__(
        self, servers: Iterable[str], index: ResourceIndex, conflicts: HostConflicts, events: ServerEvents
    ) -> None:
        self._outdated = {server: asyncio.Event() for server in servers}
        self._index = index
        self._conflicts = conflicts
        events.listen(self._on_event)

    async def run(self) -> None:
        """Ask the servers side by side, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for server, outdated in self._outdated.items():
                tasks.create_task(self._follow(server, outdated), name=f"templates:{server}")

    async def _follow(self, server: str, outdated: asyncio.Event) -> None:
        refused = False
        while True:
            features = self._index.features(server)
            # one that is not ready is asked when it is; one that has no templates, when something changed
            waits = refused or features is None or features.list_changed
            with suppress(TimeoutError):
                async with asyncio.timeout(None if waits else UNTOLD_S):
                    await outdated.wait()
            outdated.clear()
            try:
                # not by way of the index: templates that are known there are told to be out of date with each list
                found = await self._index.connection(server).all_templates()
            except ServerError as error:  # it has no templates, or no resources; a warning would be of no use
                _log.debug("the templates of MCP server %r are not known: it %s", server, error.what)
                refused = isinstance(error, RequestRefused)
            else:
                refused = False
                self._conflicts.registered_templates(server, [item["uriTemplate"] for item in found.items])
            await asyncio.sleep(PAUSE_S)

    def _on_event(self, event: ServerEvent) -> None:
        outdated = self._outdated.get(event.server)
        if outdated is None:
            return
        match event:
            case ServerReady() | ResourcesChanged():
                outdated.set()
            case ServerGone():
                outdated.clear()
                self._conflicts.registered_templates(event.server, ())
            case _:
                pass
