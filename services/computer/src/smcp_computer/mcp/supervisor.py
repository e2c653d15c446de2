"""Supervisors: each starts one MCP server, keeps it running, and stops it. `fleet` holds all of them.

`Supervisor.run` alone opens and closes the session, as the SDK requires. A server that ends, or cannot be reached, is
started again after a pause that grows, and that a call cuts short. One that hangs is found by asking it:

- A server that has sent nothing for half of `silence_s` is asked whether it is there; each message is an answer.
- One that has sent nothing for `silence_s` is given up. But where calls run that were sent before it was asked, it may
  be a program that does one thing at a time: it is `degraded`, and given up when the last of these calls has ended or
  timed out. Calls that come later do not prolong that. A process that was stopped (SIGSTOP) is not spared.
- A call that timed out, and a request that HTTP refuses (401, 503 …), make it ask at once; the answer decides.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from smcp_computer.config.inputs import InputResolver
from smcp_computer.config.lint import CannotRun, no_tool, unknown_tools
from smcp_computer.mcp.errors import CallBrokenOff, RequestRefused, ServerFailed, ServerNotRunning
from smcp_computer.mcp.events import (
    ServerEvent,
    ServerEvents,
    ServerGone,
    ServerReady,
    ServerStatus,
    State,
    ToolsChanged,
)
from smcp_computer.mcp.process import is_stopped, usage_of
from smcp_computer.mcp.resources import STEADY_S, Listed, Lists, Resources
from smcp_computer.mcp.server_log import HANGS, WENT_AWAY, StderrLog, describe, first_of
from smcp_computer.mcp.session import ServerConnection
from smcp_computer.mcp.transports import Limits, Negotiation, connect
from smcp_computer.settings import HostSettings
from smcp_proto.backoff import Backoff
from smcp_proto.schemas.config import MCPServerConfig, MCPServerStdioConfig
from smcp_service.lifecycle import counted, set_within

_log = logging.getLogger("smcp_computer.mcp")

LEAST_PAUSE_S: Final = 1.0
"""A call that waits brings the next start forward, but not further than this after the end: it may be what kills it."""
POLL_S: Final = 30.0
"""How often a server behind HTTP is asked for its tools: a new version may take over without a word."""
RELIST_S: Final = 0.05
"""A server that says all the time that a list of it changed is not asked for it more often than that."""
LONGEST_START_S: Final = 300.0
"""A start that takes too long gets twice the time at the next try, up to this: `npx` may have to download first."""


@dataclass(eq=False)
class Supervisor:
    """Keeps one MCP server running; programs start in `start_slot`. `on_change`: its tools may differ, or it failed."""

    config: MCPServerConfig
    inputs: InputResolver
    _: KW_ONLY
    limits: Limits
    on_change: Callable[[], None]
    events: ServerEvents = field(default_factory=ServerEvents)
    host: HostSettings = field(default_factory=HostSettings)
    start_slot: Callable[[], AbstractAsyncContextManager[None]] = nullcontext

    def __post_init__(self) -> None:
        self.name = self.config.name
        self.state = State.STARTING
        self.reason = ""
        self.since = time.time()
        self.warnings: tuple[str, ...] = ()
        self.starts = 0
        """How many times it became ready; before that, the supervisors that had this server."""
        self.earlier_starts = 0
        self.tools: tuple[types.Tool, ...] = ()
        """As listed last; kept while it is started again, so that names stay. Empty where they are not offered."""
        self._listed: Listed[types.Tool] = Listed((), ())
        self._misnamed: dict[tuple[str, str], str] = {}
        self.settled = asyncio.Event()
        """Set once it became ready or failed its first start."""
        self._over_http = not isinstance(self.config, MCPServerStdioConfig)
        self._backoff = Backoff()
        self._start_s = self.limits.start_s
        self._stderr = StderrLog(self.name, self.limits.logs, self.inputs.redactor.redact)
        self._negotiation: Negotiation = "auto"
        self._ready_at = math.inf
        """When it became ready in this life, by `time.monotonic()`; infinite: not yet."""
        self.connection: ServerConnection | None = None
        self._opened = asyncio.Event()
        """Set at each connection and failure, and when it gives up."""
        self._wanted = asyncio.Event()
        """Set where a call waits for a connection."""
        self._is_over = False
        """There will be no connection, and no new call begins."""
        self._running: dict[asyncio.Timeout, float] = {}
        """When each running call was sent, by `time.monotonic()`. `end` brings their limits forward."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        """Set where something is to be done at once: it is to stop, has ended, or has to be asked."""
        self._is_outdated = False
        self._waiting: asyncio.Timeout | None = None
        """While the server is waited for: `stop` brings it forward."""

    @property
    def ready(self) -> bool:
        return self.connection is not None

    @property
    def running_calls(self) -> int:
        return len(self._running)

    def status(self, *, usage: bool = True) -> ServerStatus:
        pid = self._stderr.pid
        cpu_s, memory = usage_of(pid) if usage else (None, None)
        restarts = max(0, self.earlier_starts + self.starts - 1)
        return ServerStatus(
            self.name, self.state, self.reason, self.since, restarts, pid, cpu_s, memory, warnings=self.warnings
        )

    def _enter(self, state: State, reason: str) -> None:
        if state is not self.state:
            self.since = time.time()
        self.state, self.reason = state, self.inputs.redactor.redact(reason)

    @property
    def resources(self) -> Resources | None:
        return self.connection.resources if self.connection is not None else None

    @property
    def prompts(self) -> Lists | None:
        return self.connection.prompts if self.connection is not None else None

    async def available(self, timeout: float) -> ServerConnection:
        """The connection for a new call, waited for at most `wait_s`. Raises ServerNotRunning."""
        until = time.monotonic() + min(timeout, self.limits.wait_s)
        while self._is_over or self.connection is None or self.connection.watch.ended.is_set():
            left = until - time.monotonic()
            if self._is_over or left <= 0:
                why = f": {self.reason}" if self.reason else ""
                raise ServerNotRunning(self.name, f"is not running ({self.state}){why}")
            self._wanted.set()
            self._opened.clear()
            await set_within(left, self._opened)
        return self.connection

    async def call(self, tool: str, arguments: Mapping[str, Any], *, timeout: float, **how: Any) -> dict[str, Any]:
        """As `ServerConnection.call`. Raises also CallBrokenOff, and ServerNotRunning: nothing was run."""
        connection = await self.available(timeout)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._running[limit] = time.monotonic()
                self._idle.clear()
                return await connection.call(tool, arguments, timeout=timeout, **how)
        except (TimeoutError, asyncio.CancelledError) as error:
            if error.args != ("cancelled",):  # else it goes on with the call, if it does one thing at a time
                self._wake.set()
            if limit.expired() and isinstance(error, TimeoutError):
                why = "was restarted or removed on the Computer before the call ended"
                raise CallBrokenOff(self.name, why) from None
            raise
        except RequestRefused as error:
            if error.code == types.HEADER_MISMATCH:
                self._notified(ToolsChanged(self.name))  # the headers that the SDK makes of the list are outdated, too
            elif error.code == types.INTERNAL_ERROR and self._over_http:
                self._wake.set()  # so the SDK says also that HTTP refused the request
            raise
        finally:
            self._running.pop(limit, None)
            if not self._running:
                self._idle.set()

    def detach(self) -> None:
        """Tell nobody any more of its events and changes: another one has its name, or none."""
        self.events, self.on_change = ServerEvents(), lambda: None

    async def end(self, drain_s: float) -> None:
        """Stop it, once the calls that run have ended. After `drain_s` they are broken off, as CallBrokenOff."""
        if self.running_calls:
            _log.info("MCP server %r: %s may take %g s more", self.name, counted(self.running_calls, "call"), drain_s)
        await set_within(drain_s, self._idle)
        self._end_waits()
        for limit in self._running:
            limit.reschedule(asyncio.get_running_loop().time())
        await self._idle.wait()
        self.stop()

    def _end_waits(self) -> None:
        self._is_over = True
        self._opened.set()

    def stop(self) -> None:
        """Make `run` end: the session is closed, the process is ended whole. A start is broken off."""
        for event in (self._stopping, self._wake, self._wanted):
            event.set()
        self._end_waits()
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._stderr.process_started()
                self._ready_at = math.inf
                try:
                    await self._live()
                except Exception as error:  # noqa: BLE001 -- whatever a server does is its own failure, and is shown
                    if self._stopping.is_set() or self._ended_at_discovery(error):
                        continue
                    if (pause := self._failed(error)) is None:
                        self._end_waits()
                        await self._stopping.wait()
                    else:
                        self._opened.set()  # waiting calls set `_wanted` again
                        await set_within(min(pause, LEAST_PAUSE_S), self._stopping)
                        await set_within(pause - LEAST_PAUSE_S, self._wanted)
        finally:
            self._enter(State.STOPPED, "")
            self._stderr.close()
            self.settled.set()

    async def _live(self) -> None:
        self._wake.clear()
        self._wanted.clear()
        self._is_outdated = False
        self._enter(State.STARTING, self.reason)
        async with self._waited(None) as start, AsyncExitStack() as slot:
            # outside of the limit: the user may be asked for inputs, and others may start before it
            server = await self.inputs.resolve(self.config, self.host.environment or ())
            if not self._over_http:
                await slot.enter_async_context(self.start_slot())
            if self._stopping.is_set():
                return
            start.reschedule(asyncio.get_running_loop().time() + self._start_s)
            async with connect(
                server,
                negotiation=self._negotiation,
                limits=self.limits,
                notify=self._notified,
                log=self._stderr,
                redactor=self.inputs.redactor,
                host=self.host,
            ) as connection:
                tools = await connection.list_tools()
                start.reschedule(None)
                await slot.aclose()
                self._waiting = None
                self.connection = connection
                self._opened.set()
                self._offer(tools)
                self._ready_at = time.monotonic()
                self.starts += 1
                self.settled.set()
                self._stderr.ready(len(tools.items))
                self.on_change()
                try:
                    self.events.tell(ServerReady(self.name))
                    await self._serve(connection)
                finally:
                    self.connection = None
                    self._enter(State.BACKOFF, connection.watch.why or WENT_AWAY)
                    self.events.tell(ServerGone(self.name))
                    if not self._stopping.is_set():
                        self.on_change()

    @asynccontextmanager
    async def _waited(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """A time limit that `stop` cuts short."""
        async with asyncio.timeout(seconds) as limit:
            self._waiting = limit
            try:
                yield limit
            finally:
                self._waiting = None

    async def _serve(self, connection: ServerConnection) -> None:
        ended = asyncio.ensure_future(connection.watch.ended.wait())
        ended.add_done_callback(lambda _: self._wake.set())
        listed = time.monotonic()
        try:
            while True:
                ask_at = connection.watch.heard + self.limits.silence_s / 2
                await set_within(max(0.0, ask_at - time.monotonic()), self._wake)
                self._wake.clear()
                if self._stopping.is_set():
                    return
                if connection.watch.ended.is_set():
                    raise ServerFailed(connection.watch.why or WENT_AWAY)
                if not self._is_outdated or time.monotonic() >= ask_at:
                    await self._check(connection)
                if self._is_outdated or (self._over_http and time.monotonic() >= listed + POLL_S):
                    await set_within(max(0.0, listed + RELIST_S - time.monotonic()), self._stopping)
                    listed = time.monotonic()
                    await self._refresh(connection)
        finally:
            ended.cancel()

    async def _refresh(self, connection: ServerConnection) -> None:
        """List its tools again. Where that fails they stay, and after the next `_check` it is tried again."""
        self._is_outdated = False
        within = connection.list_s if self._over_http else min(connection.list_s, self.limits.silence_s * 2 / 3)
        try:
            async with self._waited(within):
                tools = await connection.list_tools()
        except TimeoutError:
            self._is_outdated = True
            return
        except MCPError as error:
            self._is_outdated = True
            why = connection.translated(error).what
            if connection.watch.refused or connection.watch.ended.is_set():
                connection.watch.end(connection.watch.refused)
                return
            tools = self._listed._replace(problems=(f"its tools are shown as it listed them before: it {why}",))
        if tools != self._listed:
            self._offer(tools)
            self.on_change()

    async def _check(self, connection: ServerConnection) -> None:
        """Ask whether it is there; raises ServerFailed. See this module's rules."""
        silence_s, watch, asked = self.limits.silence_s, connection.watch, time.monotonic()
        answer_s = max(silence_s / 3, watch.heard + silence_s - asked)
        with suppress(TimeoutError):
            async with self._waited(answer_s):
                await connection.ping(timeout=answer_s)
        while watch.heard < asked and not (self._stopping.is_set() or watch.ended.is_set()):
            if is_stopped(self._stderr.pid) or all(sent >= asked for sent in self._running.values()):
                watch.end(HANGS)
                raise ServerFailed(HANGS)
            if self.state is not State.DEGRADED:
                self._enter(State.DEGRADED, f"has not answered for {silence_s:g} s while it runs a call")
                _log.warning("MCP server %r %s; it is restarted if the call times out", self.name, self.reason)
            self._wake.clear()
            await set_within(silence_s / 30, self._wake)
        if self.state is not State.READY:  # it was silent, and has answered
            self._offer(self._listed)

    def relabel(self, config: MCPServerConfig, host: HostSettings) -> None:
        """Take settings that need no restart."""
        self.config, self.host = config, host
        if self.ready:
            self._offer(self._listed)

    def _offer(self, listed: Listed[types.Tool]) -> None:
        self._listed = listed
        names = [*(tool.name for tool in listed.items), *listed.left_out]
        unknown = unknown_tools(self.config, self.host, names)
        if {*unknown} != self._misnamed.keys():
            self._misnamed = {each: no_tool(*each, names) for each in unknown}
        if (warnings := (*self._misnamed.values(), *listed.problems)) != self.warnings:
            self.warnings = warnings
            self.events.warn(self.name, *warnings)
        if self.limits.strict and unknown:
            self.tools = ()
            self._enter(State.DEGRADED, f"its tools are not offered: {self.warnings[0]}")
        else:
            self.tools = listed.items
            self._enter(State.READY, "")

    def _notified(self, event: ServerEvent) -> None:
        if isinstance(event, ToolsChanged):
            self._is_outdated = True
            self._wake.set()
        else:
            self.events.tell(event)

    def _ended_at_discovery(self, error: Exception) -> bool:
        """Some servers end at any request before `initialize`: they get the legacy handshake from then on."""
        first = first_of(error)
        ended = isinstance(first, MCPError) and first.code == types.CONNECTION_CLOSED
        if retry := ended and self._negotiation == "auto" and not self.starts:
            self._negotiation = "legacy"
        return retry

    def _failed(self, error: Exception) -> float | None:
        """Tell of it. Returns the pause before the next try; None: there is none."""
        self.settled.set()
        self.on_change()
        if isinstance(first_of(error), CannotRun):
            self._enter(State.FAILED, describe(error))
            message = f"{self.reason} (it is not started, nor tried again)"
            _log.warning("MCP server %r: %s", self.name, message)
            self._stderr.note(message)
            return None
        if is_steady := time.monotonic() - self._ready_at >= STEADY_S:
            self._backoff.reset()
        pause = 0.0 if is_steady else self._backoff.next()
        outlook = f"it is started again in {pause:.1f} s" if pause else "it is started again"
        was_ready = self._ready_at < math.inf
        if not was_ready and isinstance(first_of(error), TimeoutError):
            self._start_s = max(self._start_s, min(2 * self._start_s, LONGEST_START_S))
        self._enter(State.BACKOFF, self._stderr.failed(error, outlook, was_ready=was_ready))
        return pause
