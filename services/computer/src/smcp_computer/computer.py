"""The Computer without its connection, which `app` adds over NATS and `gateway` over Socket.IO."""

import asyncio
import logging
import os
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from smcp_bus import registry_contract
from smcp_bus.audit import Trail
from smcp_bus.dispatch import Call, Dispatcher, Handler, Tracing
from smcp_bus.operations import measure_owner
from smcp_bus.outbox import Tell
from smcp_bus.owner import Keeping, Owner
from smcp_bus.ownership import Seat
from smcp_bus.registry_contract import PendingAnswer, PendingQuestion
from smcp_bus.tracing import log_fields
from smcp_computer.access import Access
from smcp_computer.config.file import ComputerConfig, file_changes, load_config, read_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.secret_store import SecretStore
from smcp_computer.confirmation import PROGRAM, Asker, Confirmation, ask_at_terminal, ask_program
from smcp_computer.elicitation import OpenElicitations, elicit_at_terminal
from smcp_computer.handlers.resources import resource_handlers
from smcp_computer.handlers.tool_call import ToolCalls
from smcp_computer.mcp.fleet import Changes, Fleet
from smcp_computer.mcp.transports import Limits
from smcp_computer.metrics import measure
from smcp_computer.outbox import CAPABILITIES, CONFIG, TOOL_LIST, ComputerOutbox, OfferedResources
from smcp_computer.pins import Pins
from smcp_computer.redaction import shown
from smcp_computer.reshaping import Results
from smcp_computer.settings import LOGS, ComputerSettings, names_path, state_path
from smcp_computer.terminal import Terminal, hangups
from smcp_computer.tool_names import take_names, write_names
from smcp_computer.tools import Catalogue
from smcp_proto.schemas import config as schemas
from smcp_proto.schemas.tools import GetToolsReq, GetToolsRet
from smcp_service.health import Readiness
from smcp_service.lifecycle import Background, counted, set_within, waiting_for_calls
from smcp_service.logging import rewritten_logs
from smcp_service.metrics import Metrics

if TYPE_CHECKING:
    from smcp_computer.app import NatsMembership
    from smcp_computer.gateway import GatewayMembership

_log = logging.getLogger("smcp_computer")

HEAD_START_S: Final = 5.0
"""How long joining waits for MCP servers to start: an Agent that sees this Computer enter asks for its tools at once.
Notifications of a changed configuration wait as long, once calls at its restarted servers have ended. After a restart
joining may wait for half of `SMCP_MOVE_S`."""
READ_S: Final = 10.0
"""How long a changed file may take to read: it may be a pipe, or on a network disk that hangs."""
EVENTS: Final = "smcp_computer.events"
"""The logger of what is recorded, too (`smcp_bus.audit`)."""


class Options(TypedDict, total=False):
    """Overrides of settings and environment. `asker` approves tools in place of `terminal`, where inputs are asked for;
    `environ` is for the placeholders."""

    config: ComputerConfig
    readiness: Readiness
    asker: Asker | None
    terminal: Terminal | None
    environ: Mapping[str, str]
    metrics: Metrics
    trail: Trail


class Computer:
    """A Computer without its connection, which sets `membership` and enters `serving`. Raises ConfigError,
    and UnusableFile (of the pins).

    Args:
        tell: sends an event to the registry over NATS or to a gateway; it becomes a notification.
        max_body: bytes that an answer may have.
        may_tell: whether this Computer is a member now.
        handlers: those that only this connection needs, by event.
    """

    membership: "NatsMembership | GatewayMembership"

    def __init__(
        self,
        settings: ComputerSettings,
        tell: Tell,
        tasks: Background,
        *,
        max_body: int,
        may_tell: Callable[[], bool],
        tracing: Tracing | None,
        handlers: Mapping[str, Handler] = MappingProxyType({}),
        **options: Unpack[Options],
    ) -> None:
        config = options.get("config") or load_config(settings.config)
        environ = options.get("environ", os.environ)
        for warning in config.warnings:
            _log.warning("configuration: %s", warning)
        self.config_problem: str | None = None
        """Why the file cannot be followed as it is now; None: this Computer runs what it says."""
        self._file, self._env_files = settings.config, config.env_files
        self._reloading = asyncio.Lock()
        self.tasks, self.may_tell = tasks, may_tell
        self.metrics = options.get("metrics") or Metrics()
        self.readiness = options.get("readiness") or Readiness()
        self.outbox = ComputerOutbox(
            tell,
            lambda work: tasks.start(work(), name="outbox"),
            office=settings.office,
            computer=settings.name,
            may_tell=may_tell,
        )
        terminal = self._terminal = options.get("terminal")
        self.inputs = InputResolver(
            config.inputs,
            environ,
            store=SecretStore(state_path(settings), settings.secret_key_file),
            terminal=terminal,
        )
        self.fleet = Fleet(
            config,
            self.inputs,
            limits=Limits(
                max_message=max_body,
                max_values=settings.max_values,
                start_s=settings.start_s,
                wait_s=settings.wait_s,
                silence_s=settings.silence_s,
                logs=state_path(settings) / LOGS,
                strict=settings.strict,
            ),
            on_change=self._tools_changed,
        )
        self.readiness.add("mcp_servers", lambda: "starting" if self.fleet.unready() else None)
        self.readiness.note("configuration", lambda: self.config_problem)
        if not (pins := settings.pins_file).exists():
            level = logging.WARNING if "pins" in settings.model_fields_set else logging.INFO
            _log.log(level, "no tool is pinned: %s is not there", pins)
        self.pins = Pins(pins, enforces=settings.pins == "enforce", warn=self.fleet.events.warn)
        self.readiness.note("pins", lambda: self.pins.problem)
        self._names_file = names_path(settings)
        self.catalogue = Catalogue(self.fleet.supervisors, self.pins, take_names(self._names_file))
        self.owner = Owner(Keeping(results_s=settings.keep_results_s))
        self.seat = Seat(settings.office, settings.name)
        self.access = Access(lambda: self.fleet.config.host, self.catalogue, settings.office)
        self.resources = OfferedResources(self.fleet, self.outbox, tasks)
        asker, where = options.get("asker"), "at this terminal"
        if settings.confirm_command is not None:
            asker, where = partial(ask_program, shlex.split(settings.confirm_command)), f"by the program of {PROGRAM}"
        elif asker is None and terminal is not None:
            asker = partial(ask_at_terminal, terminal)
        trail = options.get("trail") or Trail(logging.getLogger(EVENTS))
        self.confirmation = Confirmation(settings.confirm, asker, self.seat, trail, where)
        _log.info("tool calls %s, unless the configuration says otherwise", self.confirmation.policy)
        self.calls = ToolCalls(
            self.catalogue,
            self.owner,
            self.seat,
            self.access,
            self.confirmation,
            self.resources.history,
            Results(run_s=settings.vrl_s),
            max_body=max_body,
            # Agents know the tools from the process before a restart: their calls wait, as they did for the seat
            start_s=settings.start_s if settings.restart else settings.wait_s,
            elicitations=OpenElicitations(settings.question_s),
            at_terminal=partial(elicit_at_terminal, terminal) if settings.elicit == "terminal" else None,
        )
        self.dispatcher = Dispatcher(
            {
                "client:tool_call": self.calls,
                "client:get_tools": self._get_tools,
                "client:get_config": self._get_config,
                "client:get_status": self._get_status,
                registry_contract.PENDING.event: self._pending,
                **resource_handlers(settings, self.fleet, self.access, self.resources, tasks),
                **handlers,
            },
            tracing=tracing,
            observe=log_fields,
            max_values=settings.max_values,
        )
        self._config = shown(config)
        self._head_start_s = max(HEAD_START_S, settings.move_s / 2 if settings.restart else 0.0)
        measure(self)
        measure_owner(self.metrics, self.owner)

    async def _get_config(self, request: schemas.GetComputerConfigReq, call: Call) -> schemas.GetComputerConfigRet:
        if not (hidden := self.access.hidden(call.caller)):
            return self._config
        servers = {name: server for name, server in self._config.servers.items() if name not in hidden}
        return self._config.model_copy(update={"servers": servers, "inputs": []})  # inputs may be of hidden servers

    async def _get_tools(self, request: GetToolsReq, call: Call) -> GetToolsRet:
        return GetToolsRet(tools=self.access.listed(call.caller, self.catalogue.listing), req_id=request.req_id)

    async def _get_status(self, request: schemas.GetStatusReq, call: Call) -> schemas.GetStatusRet:
        """What Agents may know: no processes, no warnings for the user."""
        hidden, find = self.access.hidden(call.caller), self.catalogue.find
        mine = (find(tool.name) for tool in self.access.listed(call.caller, self.catalogue.listing))
        listed = Counter(target.ref.server for target in mine if target is not None)
        statuses = (each for each in self.fleet.statuses(usage=False) if each.name not in hidden)
        shared = schemas.ServerStatus.model_fields.keys() - {"tools"}
        servers = [
            schemas.ServerStatus(tools=listed[each.name], **{field: getattr(each, field) for field in shared})
            for each in statuses
        ]
        problem = {}
        if self.config_problem is not None and not hidden:
            problem["config_problem"] = self.config_problem.replace(f"{self._file}: ", "")
        return schemas.GetStatusRet(servers=servers, req_id=request.req_id, **problem)

    def _tools_changed(self) -> None:
        if self.catalogue.refresh():
            self.outbox.changed(TOOL_LIST)

    async def _pending(self, question: PendingQuestion, call: Call) -> PendingAnswer:
        return self.owner.pending(self.seat, question, self.dispatcher)

    async def follow_file(self) -> None:
        """Run what the configuration file says, whenever it changes and on SIGHUP, until cancelled."""

        def on_hangup() -> None:
            _log.info("the configuration is read again (SIGHUP)")
            self.tasks.start(self.reload(), name="reload")

        with hangups(on_hangup):
            async for _ in file_changes(lambda: (self._file, *self._env_files, self.pins.path)):
                await self.reload()

    async def reload(self) -> None:
        """Read the file and the pins, and apply both. A broken file changes nothing, and is the `config_problem`."""
        async with self._reloading:
            try:
                async with asyncio.timeout(READ_S):
                    await self.pins.reload()
                    self._tools_changed()
                    if await asyncio.to_thread(self._file.is_fifo):  # empty by now; reading waits for who writes
                        _log.info("%s is a pipe: the configuration is read from it at the start alone", self._file)
                        return
                    read = await asyncio.to_thread(read_config, self._file)
                self._env_files = read.env_files  # also of a file with mistakes: one of these may be the mistake
                config = read.valid()
            except Exception as error:  # noqa: BLE001 -- a saved file must not end what runs
                if isinstance(error, ConfigError):
                    problem = "; ".join(f"{self._file}: {each}" for each in (*error.problems, *error.warnings))
                elif isinstance(error, TimeoutError):
                    problem = f"{self._file}: it, an env_file or the pins cannot be read within {READ_S:g} s"
                else:  # a fault of ours
                    _log.exception("the changed configuration cannot be read")
                    problem = "the file cannot be read for an internal error, which the log shows"
                if problem != self.config_problem:
                    _log.warning("the changed configuration is invalid, keeping the previous one: %s", problem)
                self.config_problem = problem
                return
            if self.config_problem is not None:
                self.config_problem = None
                _log.info("the configuration is valid again")
            self.apply(config)

    def apply(self, config: ComputerConfig) -> Changes:
        """Run another configuration (`Fleet.apply`). The office gets one notification for each kind of change."""
        before = self.fleet.config
        for warning in config.warnings:
            if warning not in before.warnings:
                _log.warning("configuration: %s", warning)
        capabilities = self.resources.index.capabilities
        self.outbox.hold()
        changes = self.fleet.apply(config)
        self.tasks.start(self._release(changes, capabilities), name="changed configuration")
        if changes or (before.servers, before.inputs) != (config.servers, config.inputs):
            _log.info("the configuration changed%s", f" ({changes})" if changes else "")
            self._config = shown(config)
            self.outbox.changed(CONFIG)
        known = config.host.keys() & before.host.keys()
        if any(config.host[name].allow != before.host[name].allow for name in known):
            self.resources.subscriptions.drop()
            self.resources.changed_all()
        return changes

    async def _release(self, changes: Changes, capabilities: Mapping[str, Any]) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEAD_START_S + (self.fleet.drain_s if changes.restarted else 0.0)):
                    await self.fleet.wait_settled(changes.started)
                    index = self.resources.index
                    known = (index.list(name) for name in changes.started if index.features(name))
                    await asyncio.gather(*known, return_exceptions=True)
        finally:
            is_same = self.resources.index.capabilities == capabilities
            self.outbox.release(without=[CAPABILITIES] if is_same else [])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run the MCP servers."""
        with rewritten_logs(self.inputs.redactor.redact):
            servers = self.tasks.start(self.fleet.run(), name="mcp servers")
            try:
                yield
            finally:
                await self.calls.aclose()
                self.fleet.stop()
                await asyncio.wait([servers])

    def in_office(self, *, new_tenure: bool) -> None:
        """This Computer is in its office (again). `new_tenure`: another process may have had its seat meanwhile."""
        self.seat.confirmed(new_tenure=new_tenure)
        self.resources.in_office()

    async def wait_ready(self) -> None:
        """Return once it is in its office and each enabled MCP server is ready or has failed its first start."""
        await self.membership.has_joined.wait()
        await self.fleet.wait_settled()

    @asynccontextmanager
    async def member(self) -> AsyncIterator[None]:
        """Join, and stay; on leaving give the membership up. From then on nothing new is run."""

        async def join() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._head_start_s):
                    await self.fleet.wait_settled()
            await self.membership.run()

        joining = self.tasks.start(join(), name="membership")
        try:
            yield
        finally:
            joining.cancel()
            await asyncio.wait([joining])
            await self.membership.leave()

    @asynccontextmanager
    async def calls_ended(self, drain_s: float) -> AsyncIterator[None]:
        """On leaving, wait `drain_s` for running calls, then break them off, and keep the names of tools for the next
        process: a waiting call may have shown some. Nobody is asked at the terminal any more."""
        try:
            yield
        finally:
            if self._terminal is not None:
                self._terminal.close()
            if self.owner.running:
                _log.info(waiting_for_calls(self.owner.running, drain_s))
            if not await set_within(drain_s, self.owner.idle):
                _log.warning("%s broken off: not ended within %g s", counted(self.owner.running, "call"), drain_s)
            await self.calls.aclose()
            write_names(self._names_file, self.catalogue.seen)


def hinted(refusal: str) -> str:
    """A refusal of the office, with what the user can do about it."""
    if "has a Computer named" in refusal or "not for this name" in refusal:
        return f"{refusal}; choose another name with --name (SMCP_NAME)"
    if "is not an A2C-SMCP gateway" in refusal:
        return f"{refusal}: is --gateway (SMCP_GATEWAY_URL) right?"
    if "a token is needed" in refusal or "token is not accepted" in refusal:
        return f"{refusal}; set it with --token-file or SMCP_TOKEN"
    return refusal
