"""What each MCP server that is ready lists now."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from opentelemetry.metrics import Meter

from smcp_bus.backoff import Backoff
from smcp_computer.mcp.errors import ServerDied, ServerError, ServerNotRunning, ServerTimedOut
from smcp_computer.mcp.events import ResourcesChanged, ServerEvent, ServerEvents, ServerGone, ServerReady
from smcp_computer.mcp.resources import Features, Json, Resources
from smcp_computer.mcp.sdk import REQUEST_S
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.warn_once import WarnOnce

_log = logging.getLogger("smcp_computer.resources")

RELIST_S: Final = 0.05
"""A server that says all the time that its list changed is not listed anew more often than that."""
UNTOLD_S: Final = 30.0
"""How often a server is listed that does not tell when its list changes: what is known of it is never older, and who
keeps what it was answered is told within it."""
NOTHING: Final[Mapping[str, Json]] = MappingProxyType({})
Listing = Mapping[str, Json]
"""Resources by URI, in the server's order, each as the server sent it."""
Items = TypeVar("Items")


@dataclass
class _Kept(Generic[Items]):
    """One of the lists of a server, as it was taken last. Each has a turn of its own: a server may be silent of one."""

    items: Items
    asked: float = 0.0
    """When it was asked for (loop time)."""
    changes: int = -1
    """What `_Listed.changes` was then."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class _Listed:
    supervisor: Supervisor
    resources: _Kept[Listing] = field(default_factory=lambda: _Kept(NOTHING))
    templates: _Kept[tuple[Json, ...]] = field(default_factory=lambda: _Kept(()))
    changes: int = 0
    """How often its lists changed, or may have: what was asked for before the last time is out of date."""
    templates_outdated: int = 0
    """See `ResourceIndex.templates_outdated`."""
    dirty: asyncio.Event = field(default_factory=asyncio.Event)


class ResourceIndex:
    """Kept by the servers' own word that their list changed; a server that does not tell is listed each time that it is
    asked for, and every `UNTOLD_S`. `run` must be running.
    """

    def __init__(self, supervisors: Mapping[str, Supervisor], events: ServerEvents) -> None:
        self._listed = {name: _Listed(supervisor) for name, supervisor in sorted(supervisors.items())}
        self._listeners: list[Callable[[str], None]] = []
        self._warnings = WarnOnce(_log, events)
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
        return [
            name
            for name, listed in self._listed.items()
            if listed.supervisor.ready and listed.supervisor.resources is None
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
        listed = self._listed.get(server)
        resources = listed.supervisor.resources if listed is not None else None
        return None if resources is None else resources.features

    def known(self, server: str) -> Listing:
        """What it listed last in its present life, without asking; empty before."""
        listed = self._listed.get(server)
        return NOTHING if listed is None else listed.resources.items

    def templates_outdated(self, server: str) -> int:
        """How often templates that it gave, or was asked for just then, may have become others: MCP has no notification
        of its own for them.
        """
        listed = self._listed.get(server)
        return 0 if listed is None else listed.templates_outdated

    def is_listed(self, server: str) -> bool:
        listed = self._listed.get(server)
        return listed is not None and listed.resources.asked > 0

    async def list(self, server: str, *, timeout: float = REQUEST_S) -> Listing:
        """What it lists now: as it is known, or asked for where that may be out of date.

        Raises:
            ServerError: see `Resources`; also where it does not list in time.
        """
        self.connection(server)
        listed = self._listed[server]
        if await self._renew(listed, listed.resources, self._all_resources, timeout, "resources"):
            self._tell(server)
        return listed.resources.items

    async def templates(self, server: str, *, timeout: float = REQUEST_S) -> tuple[Json, ...]:
        """Its templates; kept under the same conditions as its list. Raises as `list`."""
        self.connection(server)
        listed = self._listed[server]
        await self._renew(listed, listed.templates, self._all_templates, timeout, "templates")
        return listed.templates.items

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
        async with asyncio.TaskGroup() as tasks:
            for name, listed in self._listed.items():
                tasks.create_task(self._keep(name, listed), name=f"resources:{name}")

    async def _keep(self, server: str, listed: _Listed) -> None:
        backoff = Backoff(first_s=0.5, longest_s=30.0)
        while True:
            features = self.features(server)
            tells = features is None or features.list_changed  # one that is not ready sets `dirty` when it is
            with suppress(TimeoutError):
                async with asyncio.timeout(None if tells else UNTOLD_S):
                    await listed.dirty.wait()
            listed.dirty.clear()
            pause = RELIST_S
            try:
                await self.list(server)
            except ServerNotRunning:
                continue  # it has none, or comes back
            except ServerError as error:
                if not isinstance(error, ServerDied):
                    what = (
                        "its list of resources may be old" if self.is_listed(server) else "its resources are not known"
                    )
                    self._warnings.warn(server, f"{what}: it {error.what}")
                listed.dirty.set()
                pause = backoff.next()
            else:
                backoff.reset()
            await asyncio.sleep(pause)

    async def _renew(
        self,
        listed: _Listed,
        kept: _Kept[Items],
        ask: Callable[[Resources, float], Awaitable[Items]],
        timeout: float,
        what: str,
    ) -> bool:
        """Take a list anew where it may be out of date; whether that was so. Raises as `list`."""
        loop = asyncio.get_running_loop()
        server, came = listed.supervisor.name, loop.time()

        def is_current(resources: Resources) -> bool:
            return kept.changes == listed.changes and (resources.features.list_changed or kept.asked >= came)

        if is_current(self.connection(server)):
            return False  # who waits for it to be taken anew, or for the other one, holds up nobody else
        try:
            async with asyncio.timeout(timeout), kept.turn:
                resources = self.connection(server)
                if is_current(resources):
                    return False
                asked, changes = loop.time(), listed.changes  # what changes from here on makes it old again
                items = await ask(resources, timeout)
                if listed.supervisor.resources is not resources:
                    raise ServerDied(server, "went away before it answered")
                kept.items, kept.asked, kept.changes = items, asked, changes
                return True
        except TimeoutError:
            raise ServerTimedOut(server, f"did not list its {what} in time") from None

    async def _all_resources(self, resources: Resources, timeout: float) -> Listing:
        found = await resources.list_all(timeout=timeout)
        self._doubt(resources.server, found.problems)
        return MappingProxyType({item["uri"]: item for item in found.items})

    async def _all_templates(self, resources: Resources, timeout: float) -> tuple[Json, ...]:
        found = await resources.all_templates(timeout=timeout)
        self._doubt(resources.server, found.problems)
        return found.items

    def _on_event(self, event: ServerEvent) -> None:
        listed = self._listed.get(event.server)
        if listed is None:
            return
        match event:
            case ServerReady() | ServerGone():
                self._forget(listed)
                if isinstance(event, ServerReady):
                    listed.dirty.set()
                self._tell(event.server)
            case ResourcesChanged():
                self._outdate(listed)
                listed.dirty.set()
            case _:
                pass

    def _forget(self, listed: _Listed) -> None:
        self._outdate(listed)
        listed.resources.items, listed.resources.asked, listed.templates.items = NOTHING, 0.0, ()

    def _outdate(self, listed: _Listed) -> None:
        if listed.templates.changes == listed.changes or listed.templates.turn.locked():
            listed.templates_outdated += 1
        listed.changes += 1

    def _doubt(self, server: str, problems: Iterable[str]) -> None:
        for problem in problems:
            self._warnings.warn(server, problem)

    def _tell(self, server: str) -> None:
        for listener in tuple(self._listeners):
            listener(server)


class Capabilities:
    """Those of the MCP servers that are ready, taken together; a server without resources is in none of it.

    Args:
        changed: called when they did.
    """

    def __init__(self, index: ResourceIndex, changed: Callable[[], None]) -> None:
        self._index = index
        self._changed = changed
        self._said = self.now
        index.listen(self._look)

    @property
    def now(self) -> dict[str, Any]:
        """The wire's `Capabilities`, in both of the forms that are legal: flags, and `aggregate` with `byServer`."""
        by_server = {
            name: {"subscribe": features.subscribe, "listChanged": features.list_changed}
            for name in self._index.servers()
            if (features := self._index.features(name)) is not None
        }
        whole = {flag: any(said[flag] for said in by_server.values()) for flag in ("subscribe", "listChanged")}
        return {"resources": {**whole, "aggregate": whole, "byServer": by_server}}

    def _look(self, server: str) -> None:
        now = self.now
        if now != self._said:
            self._said = now
            self._changed()


class History:
    """Bounded by the servers that there are: only the last call of each counts for the order."""

    def __init__(self) -> None:
        self._servers: dict[str, None] = {}

    def called(self, server: str) -> None:
        self._servers.pop(server, None)
        self._servers[server] = None

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._servers)


class SkippedServers:
    def __init__(self, meter: Meter) -> None:
        self._counter = meter.create_counter(
            "smcp.computer.servers_without_resources",
            unit="{server}",
            description="MCP servers that an operation over all servers skipped, since they have no resources",
        )

        self._left_out = meter.create_counter(
            "smcp.computer.servers_left_out",
            unit="{server}",
            description="MCP servers whose items a list over all servers lacks: not running, failed or silent",
        )

    def count_left_out(self, operation: str, servers: Iterable[str]) -> None:
        for server in servers:
            self._left_out.add(1, {"smcp.operation": operation, "smcp.mcp_server": server})

    def count(self, operation: str, servers: Iterable[str]) -> None:
        for server in servers:
            self._counter.add(1, {"smcp.operation": operation, "smcp.mcp_server": server})
