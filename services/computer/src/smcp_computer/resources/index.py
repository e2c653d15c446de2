"""What each MCP server that is ready lists now."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from smcp_computer.mcp.backoff import Backoff
from smcp_computer.mcp.errors import ServerDied, ServerError, ServerNotRunning, ServerTimedOut
from smcp_computer.mcp.events import ResourcesChanged, ServerEvent, ServerEvents, ServerGone, ServerReady
from smcp_computer.mcp.resources import REQUEST_S, Features, Json, Resources
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.causes import Causes

_log = logging.getLogger("smcp_computer.resources")

RELIST_S: Final = 0.05
"""A server that says all the time that its list changed is not listed anew more often than that."""
NOTHING: Final[Mapping[str, Json]] = MappingProxyType({})
Listing = Mapping[str, Json]
"""Resources by URI, in the server's order, each as the server sent it."""


@dataclass
class _Listed:
    """What is known of one server."""

    supervisor: Supervisor
    resources: Listing = field(default_factory=lambda: NOTHING)
    templates: tuple[Json, ...] | None = None
    asked: float = 0.0
    """When the listing was asked for that gave these (loop time)."""
    stale: bool = True
    dirty: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ResourceIndex:
    """Kept by the servers' own word that their list changed; a server that does not tell is listed when it is asked
    for. `run` must be running.
    """

    def __init__(self, supervisors: Mapping[str, Supervisor], events: ServerEvents) -> None:
        self._listed = {name: _Listed(supervisor) for name, supervisor in sorted(supervisors.items())}
        self._listeners: list[Callable[[str], None]] = []
        self._causes = Causes(_log)
        events.listen(self._on_event)

    def servers(self, *, subscribable: bool = False) -> list[str]:
        """Those that are ready and have resources, by name.

        Args:
            subscribable: only those that take part in desktop and finder.
        """
        return [
            name
            for name, listed in self._listed.items()
            if (resources := listed.supervisor.resources) is not None
            and (resources.features.subscribe or not subscribable)
        ]

    def without_resources(self) -> list[str]:
        """Those that can be asked and have none."""
        return [
            name
            for name, listed in self._listed.items()
            if listed.supervisor.connected and listed.supervisor.resources is None
        ]

    def connection(self, server: str) -> Resources:
        """For reading and subscribing.

        Raises:
            ServerNotRunning: there is no such server, it is not ready, or it has no resources.
        """
        listed = self._listed.get(server)
        resources = listed.supervisor.resources if listed is not None else None
        if resources is None:
            raise ServerNotRunning(server, "is not ready, or has no resources")
        return resources

    def features(self, server: str) -> Features | None:
        """What it can do with resources; None where it is not ready or has none."""
        listed = self._listed.get(server)
        resources = listed.supervisor.resources if listed is not None else None
        return None if resources is None else resources.features

    def known(self, server: str) -> Listing:
        """What it listed last in its present life, without asking; empty before."""
        listed = self._listed.get(server)
        return NOTHING if listed is None else listed.resources

    def is_listed(self, server: str) -> bool:
        """Whether it has listed its resources in its present life."""
        listed = self._listed.get(server)
        return listed is not None and listed.asked > 0

    async def list(self, server: str, *, timeout: float = REQUEST_S) -> Listing:
        """What it lists now: as it is known, or asked for where that may be out of date.

        Raises:
            ServerError: see `Resources`; also where it does not list in time.
        """
        self.connection(server)
        listed = self._listed[server]
        loop = asyncio.get_running_loop()
        came = loop.time()
        try:
            async with asyncio.timeout(timeout), listed.turn:
                resources = self.connection(server)
                current = resources.features.list_changed or listed.asked >= came
                if listed.stale or not current:
                    await self._ask(listed, resources, timeout)
        except TimeoutError:
            raise ServerTimedOut(server, "did not list its resources in time") from None
        return listed.resources

    async def templates(self, server: str, *, timeout: float = REQUEST_S) -> tuple[Json, ...]:
        """Its templates; kept under the same conditions as its list. Raises as `list`."""
        self.connection(server)
        listed = self._listed[server]
        try:
            async with asyncio.timeout(timeout), listed.turn:
                resources = self.connection(server)
                if listed.templates is not None and resources.features.list_changed:
                    return listed.templates
                found = await resources.all_templates(timeout=timeout)
                self._doubt(server, found.problems)
                if listed.supervisor.resources is resources:
                    listed.templates = found.items
                return found.items
        except TimeoutError:
            raise ServerTimedOut(server, "did not list its templates in time") from None

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Be called with the name of a server whose list was taken anew, or that came or went; it must not block.

        Returns what ends that.
        """
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    async def run(self) -> None:
        """Keep it true, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, listed in self._listed.items():
                tasks.create_task(self._keep(name, listed), name=f"resources:{name}")

    async def _keep(self, server: str, listed: _Listed) -> None:
        backoff = Backoff(first_s=0.5, longest_s=30.0)
        while True:
            await listed.dirty.wait()
            listed.dirty.clear()
            pause = RELIST_S
            try:
                await self.list(server)
            except ServerNotRunning:
                continue  # it has none, or comes back
            except ServerError as error:
                if not isinstance(error, ServerDied):
                    self._causes.warn(server, f"its resources are not known: it {error.what}")
                listed.dirty.set()
                pause = backoff.next()
            else:
                backoff.reset()
            await asyncio.sleep(pause)

    async def _ask(self, listed: _Listed, resources: Resources, timeout: float) -> None:
        server = resources.server
        asked = asyncio.get_running_loop().time()
        listed.stale = False  # what changes from here on makes it so again
        try:
            found = await resources.list_all(timeout=timeout)
        except BaseException:
            listed.stale = True
            raise
        if listed.supervisor.resources is not resources:
            raise ServerDied(server, "went away before it answered")
        self._doubt(server, found.problems)
        listed.asked = asked
        listed.resources = MappingProxyType({item["uri"]: item for item in found.items})
        self._tell(server)

    def _on_event(self, event: ServerEvent) -> None:
        listed = self._listed.get(event.server)
        if listed is None:
            return
        match event:
            case ServerReady() | ServerGone():
                self._forget(listed)
                if isinstance(event, ServerReady):
                    self._causes.forget(event.server)
                    listed.dirty.set()
                self._tell(event.server)
            case ResourcesChanged():
                listed.stale, listed.templates = True, None
                listed.dirty.set()
            case _:
                pass

    def _forget(self, listed: _Listed) -> None:
        listed.resources, listed.templates, listed.stale, listed.asked = NOTHING, None, True, 0.0

    def _doubt(self, server: str, problems: Iterable[str]) -> None:
        for problem in problems:
            self._causes.warn(server, problem)

    def _tell(self, server: str) -> None:
        for listener in tuple(self._listeners):
            listener(server)
