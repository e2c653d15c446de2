"""Supervisors: each starts one MCP server, keeps it running, and stops it. `fleet` holds all of them.

`Supervisor.run` alone opens and closes the session, as the SDK requires. A server that ends is started again after a
pause that grows.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from smcp_computer.config.host_settings import HostSettings
from smcp_computer.config.inputs import SETTING, InputResolver, with_variables
from smcp_computer.config.lint import CannotRun, no_tool, unknown_tools
from smcp_computer.mcp.errors import CallBrokenOff, RequestRefused, ServerFailed, ServerNotRunning
from smcp_computer.mcp.events import ServerEvent, ServerEvents, ServerGone, ServerReady, ToolsChanged
from smcp_computer.mcp.resources import Resources
from smcp_computer.mcp.sdk_adapter import CallSpan
from smcp_computer.mcp.server_log import WENT_AWAY, StderrLog, describe, first_of
from smcp_computer.mcp.session import Connection, Negotiation, connect
from smcp_computer.mcp.status import ServerStatus, State, usage_of
from smcp_proto.backoff import Backoff
from smcp_proto.schemas.config import MCPServerConfig, MCPServerStdioConfig
from smcp_service.lifecycle import counted

_log = logging.getLogger("smcp_computer.mcp")

START_S: Final = 30.0
"""How long a start may take, the first list of tools included."""
STEADY_S: Final = 10.0
"""A server that ran for so long is not taken to be one that always dies."""
HTTP_PROBE_S: Final = 30.0
"""How often a server behind HTTP is asked for its tools: nothing else tells that it went away."""


@dataclass(frozen=True)
class Limits:
    max_message: int = 32 * 1024 * 1024
    """Bytes that what a server sends in one message may have: no answer that is larger reaches an Agent."""
    start_s: float = START_S
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that programs get beside the default ones; those of a server's own `env` win."""
    withheld: tuple[str, ...] = ()
    """Names of variables that a program may have needed, and that it did not get; for the log."""
    strict: bool = False
    """Offer no tool of a server while its configuration names tools that it does not have."""


class Supervisor:
    """Keeps one MCP server running. `on_change` is called whenever the tools that can be called may have changed."""

    def __init__(
        self,
        config: MCPServerConfig,
        inputs: InputResolver,
        *,
        limits: Limits,
        on_change: Callable[[], None],
        events: ServerEvents | None = None,
        backoff: Backoff | None = None,
        host: HostSettings | None = None,
    ) -> None:
        self.config = config
        self.host = host or HostSettings()
        self.name = config.name
        self.state = State.STARTING
        self.reason = ""
        """Why it is not ready, for the user of this host."""
        self.since = time.time()
        """When it came into its state, in seconds since the epoch."""
        self.warnings: tuple[str, ...] = ()
        """What its user should know of it, whatever its state."""
        self.starts = 0
        """How many times it became ready."""
        self.tools: tuple[types.Tool, ...] = ()
        """As listed last; kept while it is started again, so that names stay. Empty where they are not offered."""
        self._listed: tuple[types.Tool, ...] = ()
        self._unknown: tuple[tuple[str, str], ...] = ()
        """See `unknown_tools`."""
        self.settled = asyncio.Event()
        """Set once it became ready or failed its first start."""
        self._inputs = inputs
        self._limits = limits
        self._on_change = on_change
        self._events = events or ServerEvents()
        self._backoff = backoff or Backoff()
        self._stderr = StderrLog(config.name)
        self._logged: tuple[str, int | None] | None = None
        """Why it did not start, as it was logged last, with the exit status."""
        self._negotiation: Negotiation = "auto"
        self._connection: Connection | None = None
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        """Set where it is to stop, has ended, or has to be asked for its tools again."""
        self._waiting: asyncio.Timeout | None = None
        """While the server is waited for: `stop` brings it forward."""
        self._calls: set[asyncio.Timeout] = set()
        """Of the calls that run: `end` brings them forward."""
        self._idle = asyncio.Event()
        """Set while none runs."""
        self._idle.set()

    @property
    def ready(self) -> bool:
        return self._connection is not None

    def status(self) -> ServerStatus:
        pid = self._stderr.pid
        used = usage_of([pid] if pid is not None else []).get(pid or 0)
        return ServerStatus(
            name=self.name,
            state=self.state,
            reason=self.reason,
            since=self.since,
            restarts=max(0, self.starts - 1),
            pid=pid,
            cpu_s=used.cpu_s if used else None,
            memory_bytes=used.memory_bytes if used else None,
            tools=len(self.tools),
            warnings=self.warnings,
        )

    def _enter(self, state: State, reason: str) -> None:
        if state is not self.state:
            self.since = time.time()
        self.state, self.reason = state, self._inputs.redactor.redact(reason)

    @property
    def resources(self) -> Resources | None:
        return self._connection.resources if self._connection is not None else None

    async def call(self, tool: str, arguments: Mapping[str, Any], *, timeout: float, span: CallSpan) -> dict[str, Any]:
        """Run a tool under its original name; raises as `Connection.call`, and ServerNotRunning: nothing was run."""
        if self._connection is None:
            raise ServerNotRunning(self.name, f"is not running ({self.state})")
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._calls.add(limit)
                self._idle.clear()
                return await self._connection.call(tool, arguments, timeout=timeout, span=span)
        except RequestRefused as error:
            if error.code == types.HEADER_MISMATCH:
                self._wake.set()  # the list of tools is outdated, and with it the headers that the SDK makes of it
            raise
        except TimeoutError:
            if limit.expired():
                why = "was changed or removed in the Computer's configuration: the call did not end soon enough"
                raise CallBrokenOff(self.name, why) from None
            raise
        finally:
            self._calls.discard(limit)
            if not self._calls:
                self._idle.set()

    @property
    def calls(self) -> int:
        """How many run."""
        return len(self._calls)

    def detach(self) -> None:
        """Tell nobody any more of its events and changes: another one has its name, or none."""
        self._events, self._on_change = ServerEvents(), lambda: None

    async def end(self, drain_s: float) -> None:
        """Stop it, once the calls that run have ended. After `drain_s` they are broken off, as CallBrokenOff."""
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._idle.wait()
        for limit in self._calls:
            limit.reschedule(asyncio.get_running_loop().time())
        await self._idle.wait()
        self.stop()

    def stop(self) -> None:
        """Make `run` end: the session is closed, the process is ended whole. A start is broken off."""
        self._stopping.set()
        self._wake.set()
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            lived = STEADY_S
            while not self._stopping.is_set():
                began, starts = loop.time(), self.starts
                # what a server says that dies again and again stands in the lines that tell of its ends
                self._stderr.born(quiet_s=0.0 if lived >= STEADY_S else STEADY_S)
                try:
                    await self._live()
                except Exception as error:  # noqa: BLE001 -- whatever a server does is its own failure, and is shown
                    if self._stopping.is_set() or self._ended_at_discovery(error):
                        continue
                    lived = loop.time() - began
                    if lived >= STEADY_S:
                        self._backoff.reset()
                    pause = None if isinstance(first_of(error), CannotRun) else self._backoff.next()
                    self._failed(error, pause, was_ready=self.starts > starts)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._stopping.wait()
        finally:
            self._enter(State.STOPPED, "")
            self.settled.set()

    async def _live(self) -> None:
        self._wake.clear()
        self._enter(State.STARTING, self.reason)
        async with self._waited(None) as start:
            # outside of the limit: the user may be asked for inputs
            server = with_variables(await self._inputs.resolve(self.config), self._limits.environment)
            limit_s = 0.0 if self._stopping.is_set() else self._limits.start_s
            start.reschedule(asyncio.get_running_loop().time() + limit_s)
            async with connect(
                server,
                negotiation=self._negotiation,
                max_message=self._limits.max_message,
                notify=self._notified,
                log=self._stderr,
                redactor=self._inputs.redactor,
            ) as connection:
                tools = await connection.list_tools()
                start.reschedule(None)
                self._waiting = None
                self._became_ready(connection, tools)
                try:
                    self._events.tell(ServerReady(self.name))
                    await self._serve(connection)
                finally:
                    self._connection = None
                    self._enter(State.BACKOFF, self.reason)
                    self._events.tell(ServerGone(self.name))
                    if not self._stopping.is_set():
                        self._on_change()

    @asynccontextmanager
    async def _waited(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """A time limit that `stop` cuts short."""
        async with asyncio.timeout(seconds) as limit:
            self._waiting = limit
            try:
                yield limit
            finally:
                self._waiting = None

    async def _serve(self, connection: Connection) -> None:
        over_http = not isinstance(self.config, MCPServerStdioConfig)
        ended = asyncio.ensure_future(connection.ended.wait())
        ended.add_done_callback(lambda _: self._wake.set())
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HTTP_PROBE_S if over_http else None):
                        await self._wake.wait()
                self._wake.clear()
                if self._stopping.is_set():
                    return
                if connection.ended.is_set():
                    raise ServerFailed(WENT_AWAY)
                await self._refresh(connection)
        finally:
            ended.cancel()

    async def _refresh(self, connection: Connection) -> None:
        async with self._waited(connection.list_s):
            tools = await connection.list_tools()
        if tools != self._listed:
            self._offer(tools)
            self._on_change()

    def relabel(self, config: MCPServerConfig, host: HostSettings) -> None:
        """Take settings that need no restart."""
        self.config, self.host = config, host
        if self.ready:
            self._offer(self._listed)

    def _offer(self, tools: tuple[types.Tool, ...]) -> None:
        self._listed = tools
        names = [tool.name for tool in tools]
        if (unknown := unknown_tools(self.config, self.host, names)) != self._unknown:
            self._unknown = unknown
            self.warnings = tuple(no_tool(field, name, names) for field, name in unknown)
            for warning in self.warnings:
                _log.warning("MCP server %r: %s", self.name, warning)
        refused = self._limits.strict and bool(unknown)
        self.tools = () if refused else tools
        if refused:
            self._enter(State.DEGRADED, f"its tools are not offered: {self.warnings[0]}")
        else:
            self._enter(State.READY, "")

    def _notified(self, event: ServerEvent) -> None:
        if isinstance(event, ToolsChanged):
            self._wake.set()
        else:
            self._events.tell(event)

    def _became_ready(self, connection: Connection, tools: tuple[types.Tool, ...]) -> None:
        self._connection = connection
        self._offer(tools)
        self.starts += 1
        self.settled.set()
        self._logged = None
        _log.info("MCP server %r is ready with %s", self.name, counted(len(tools), "tool"))
        self._on_change()

    def _ended_at_discovery(self, error: Exception) -> bool:
        """Some servers end at any request before `initialize`: they get the legacy handshake from then on."""
        match first_of(error):
            case MCPError(code=types.CONNECTION_CLOSED) if self._negotiation == "auto" and not self.starts:
                self._negotiation = "legacy"
                return True
            case _:
                return False

    def _failed(self, error: Exception, pause: float | None, *, was_ready: bool) -> None:
        self._enter(State.FAILED if pause is None else State.BACKOFF, describe(error))
        if pause is None:
            _log.warning("MCP %s (it is not started, nor tried again)", self.reason)
        else:
            self._log_end(pause, was_ready)
        self.settled.set()

    def _log_end(self, pause: float, was_ready: bool) -> None:
        message, end, said = self.reason, self._stderr.end, self._stderr.said
        if end and self.reason == WENT_AWAY and not was_ready:
            self.reason = f"{end} before it answered"
            message = f"{self.reason}; {said}"
        elif end:
            message = f"{self.reason} ({end}; {said})"
        message += f"; it is started again in {pause:.1f} s"
        level = logging.WARNING
        if not was_ready:
            logged, self._logged = self._logged, (self.reason, self._stderr.status)
            level = logging.DEBUG if logged == self._logged else logging.WARNING
            message += f", then ever later, up to every {self._backoff.longest_s:g} s"
            if end and isinstance(self.config, MCPServerStdioConfig):
                own = self.config.server_parameters.env or {}
                if missing := [name for name in self._limits.withheld if name not in own]:
                    message += f"; it was not given {', '.join(missing)}: set {SETTING}=true if it needs them"
        _log.log(level, "MCP server %r: %s", self.name, message)
