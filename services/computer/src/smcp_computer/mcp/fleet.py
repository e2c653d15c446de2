"""The MCP servers of one configuration: `Fleet` runs a supervisor for each, and follows changes of the configuration.

`changed` says what two configurations differ in, for the servers that run. What a supervisor does with its one server
is in `supervisor`; where a new configuration comes from is in `computer`.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Final

from smcp_computer.config.file import ComputerConfig
from smcp_computer.config.inputs import InputResolver
from smcp_computer.config.lint import PARAMETERS, placed
from smcp_computer.mcp.events import ServerEvents, ServerGone, ServerRemoved, ServerStatus, State
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.mcp.transports import Limits
from smcp_computer.settings import HostSettings
from smcp_proto.schemas.config import MCPServerConfig

DRAIN_S: Final = 5.0
"""How long calls may go on at a server that was changed or removed: its new settings do not take effect before. So long
other requests may hold up the end of the Computer, too."""


@dataclass(frozen=True)
class Changes:
    """Names of servers. Those that are disabled do not run, and count as not there."""

    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    restarted: frozenset[str] = frozenset()
    """What their process or connection is made from changed."""
    relabelled: frozenset[str] = frozenset()
    """Something else changed, which takes effect while they run."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.restarted or self.relabelled)

    def __str__(self) -> str:
        said = {"added": self.added, "removed": self.removed, "restarted": self.restarted, "changed": self.relabelled}
        return "; ".join(f"{what}: {', '.join(sorted(names))}" for what, names in said.items() if names)

    @property
    def started(self) -> frozenset[str]:
        return self.added | self.restarted


def changed(old: ComputerConfig, new: ComputerConfig) -> Changes:
    """What has to be done to go from one configuration to another. Pure."""
    before, now = _enabled(old), _enabled(new)
    both = before.keys() & now.keys()
    restarted = {name for name in both if _made_from(old, name) != _made_from(new, name)}
    other = {name for name in both if (before[name], _host(old, name)) != (now[name], _host(new, name))}
    return Changes(
        added=frozenset(now.keys() - before.keys()),
        removed=frozenset(before.keys() - now.keys()),
        restarted=frozenset(restarted),
        relabelled=frozenset(other - restarted),
    )


def _enabled(config: ComputerConfig) -> dict[str, MCPServerConfig]:
    return {name: server for name, server in config.servers.items() if not server.disabled}


def _host(config: ComputerConfig, name: str) -> HostSettings:
    return config.host.get(name) or HostSettings()


def _made_from(config: ComputerConfig, name: str) -> object:
    """All that the process or the connection of a server depends on."""
    server = config.servers[name]
    placeholders = (each for _, each in placed(server.server_parameters.model_dump(), PARAMETERS))
    named = {each.name for each in placeholders if each.kind == "input"} & config.inputs.keys()
    inputs = {name: config.inputs[name].model_dump(exclude={"description"}) for name in named}
    host = _host(config, name).model_dump(exclude=set(HostSettings.LIVE)) if server.type == "stdio" else None
    return server.type, server.server_parameters, host, inputs, config.missing_env_files.get(name)


@dataclass(eq=False)
class Fleet:
    """The supervisors of all servers that are not disabled. `run` must be running.

    `on_change` is called whenever the tools that can be called may have changed, and when a server failed.
    """

    config: ComputerConfig
    inputs: InputResolver
    _: KW_ONLY
    limits: Limits
    on_change: Callable[[], None]
    drain_s: float = DRAIN_S
    start_slots: int = 2 * (os.cpu_count() or 1)
    """Programs that start at the same time: with all at once, the first would be ready as late as the last. One that
    takes longer than `slot_s` is not counted: it waits for a download, and not for a core."""
    slot_s: float = 3.0

    def __post_init__(self) -> None:
        self.events = ServerEvents(self.inputs.redactor)
        self.inputs.missing_env_files = self.config.missing_env_files
        self._slots = asyncio.Semaphore(self.start_slots)
        self.supervisors = {name: self._supervisor(name) for name in _enabled(self.config)}
        """By name. One object for the life of the fleet, which shows what is configured now."""
        self._first = tuple(self.supervisors.values())
        self._runs: dict[str, asyncio.Task[None]] = {}
        """The last one by server: the next waits for it, since two processes may want the same port or file."""
        self._group: asyncio.TaskGroup | None = None
        self._disabled_since: dict[str, float] = {}
        """Of each disabled server."""
        self._note_disabled()
        self._stopping = asyncio.Event()

    @property
    def starting(self) -> list[str]:
        return [name for name, supervisor in self.supervisors.items() if not supervisor.settled.is_set()]

    def unready(self) -> bool:
        """Whether servers of the first configuration are not settled."""
        return any(not each.settled.is_set() for each in self._first)

    async def wait_settled(self, servers: Collection[str] | None = None) -> None:
        """Return when each server, or each of these, is ready or has failed its first start."""
        while starting := [name for name in self.starting if servers is None or name in servers]:
            await self.supervisors[starting[0]].settled.wait()

    def statuses(self, *, usage: bool = True) -> list[ServerStatus]:
        """Of all servers by name, those that are disabled too. `usage`: measure what their processes use, too."""
        found = [each.status(usage=usage) for each in self.supervisors.values()]
        found += [ServerStatus(name, State.DISABLED, "", since) for name, since in self._disabled_since.items()]
        return sorted(found, key=lambda each: each.name)

    def restart(self, name: str) -> None:
        """End a server, as `apply` does, and start it again, unless all stop. Raises KeyError: it does not run."""
        if not self._stopping.is_set():
            self._retire(name)
            self._start(self.supervisors[name])

    def apply(self, config: ComputerConfig) -> Changes:
        """Run the servers of another configuration. Returns what changed, at once; `wait_settled` waits for the rest.

        A server that is restarted or removed is not called any more. Calls that run there have `drain_s` to end, and
        are broken off then; a restarted one starts after that.
        """
        if self._stopping.is_set():
            return Changes()
        changes = changed(self.config, config)
        self.config = config
        self._note_disabled()
        self.inputs.definitions, self.inputs.missing_env_files = config.inputs, config.missing_env_files
        for name in changes.relabelled:
            self.supervisors[name].relabel(config.servers[name], _host(config, name))
        for name in sorted(changes.removed | changes.restarted):
            self._retire(name)
        for name in changes.added:
            self.supervisors[name] = self._supervisor(name)
        for name in changes.started:
            self._start(self.supervisors[name])
        if changes:
            self.on_change()
        return changes

    def stop(self) -> None:
        """End `run`, once the calls at removed servers have ended (at most `drain_s`)."""
        self._stopping.set()
        for supervisor in self.supervisors.values():
            supervisor.stop()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            for supervisor in self.supervisors.values():
                self._start(supervisor)
            await self._stopping.wait()

    def _supervisor(self, name: str) -> Supervisor:
        return Supervisor(
            self.config.servers[name],
            self.inputs,
            limits=self.limits,
            on_change=self.on_change,
            events=self.events,
            host=_host(self.config, name),
            start_slot=self._start_slot,
        )

    @asynccontextmanager
    async def _start_slot(self) -> AsyncIterator[None]:
        await self._slots.acquire()
        with ExitStack() as slot:
            slot.callback(self._slots.release)
            slot.callback(asyncio.get_running_loop().call_later(self.slot_s, slot.close).cancel)
            yield

    def _note_disabled(self) -> None:
        names = self.config.servers.keys() - _enabled(self.config)
        self._disabled_since = {name: self._disabled_since.get(name, time.time()) for name in names}

    def _start(self, supervisor: Supervisor) -> None:
        name = supervisor.name
        before = self._runs.get(name)

        async def run() -> None:
            if before is not None:
                await asyncio.wait([before])
            await supervisor.run()

        if self._group is not None:  # else `run` starts it
            self._runs[name] = self._group.create_task(run(), name=f"mcp:{name}")

    def _retire(self, name: str) -> None:
        old = self.supervisors.pop(name)
        was_ready = old.ready
        old.detach()
        if name in _enabled(self.config):
            new = self.supervisors[name] = self._supervisor(name)
            new.tools = old.tools  # so that names stay
            new.earlier_starts = old.earlier_starts + old.starts
        if was_ready:
            self.events.tell(ServerGone(name))
        self.events.tell(ServerRemoved(name))
        if self._group is not None:
            self._group.create_task(old.end(self.drain_s), name=f"mcp:{name}:end")
