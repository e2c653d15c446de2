"""The part of a Computer that does not depend on its connection: MCP servers, handlers, calls, and their lifetimes."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from smcp_bus import registry_contract
from smcp_bus.call_records import Keeping
from smcp_bus.dispatch import Dispatcher, Handler, Tracing
from smcp_bus.tracing import office_of, trace_id_of
from smcp_computer.announcing import CAPABILITIES, TOOL_LIST, Announcer
from smcp_computer.config.file import ComputerConfig, load_config
from smcp_computer.config.inputs import InputResolver, network_variables
from smcp_computer.config.redact import shown
from smcp_computer.confirmation import Asker, Confirmation
from smcp_computer.context import Context
from smcp_computer.handlers.get_config import get_config
from smcp_computer.handlers.get_tools import get_tools
from smcp_computer.handlers.pending import pending
from smcp_computer.handlers.tool_call import ToolCalls
from smcp_computer.in_flight import InFlight
from smcp_computer.mcp.supervisor import Fleet, Limits
from smcp_computer.metrics import calls_timed, measure
from smcp_computer.office_client import OfficeClient
from smcp_computer.resource_services import ResourceServices, resource_services
from smcp_computer.settings import ComputerSettings
from smcp_computer.tools.catalogue import Catalogue
from smcp_service.health import Readiness
from smcp_service.lifecycle import Background, background, counted, waiting_for_calls
from smcp_service.logging import bind_call
from smcp_service.metrics import Metrics


class Place(Protocol):
    """Had by `run`, which must be running, and given up by `leave`."""

    @property
    def joined(self) -> asyncio.Event:
        """Set once the place was had for the first time."""

    @property
    def problem(self) -> str | None:
        """Why this Computer is not in its office now; None while it is."""

    async def run(self) -> None:
        """Have the place, and have it again whenever it was lost, until cancelled."""

    async def leave(self) -> None:
        """Give the place up; `run` must have ended. It is bounded, and does not raise what the office says."""


_log = logging.getLogger("smcp_computer")

HEAD_START_S: Final = 5.0
"""How long the MCP servers may take before the office is joined without them: an Agent that sees this Computer come
asks for its tools at once. Those that come later are announced."""


@asynccontextmanager
async def running(tasks: Background, fleet: Fleet, context: Context) -> AsyncIterator[None]:
    """The MCP servers, and what follows them; on leaving they are ended."""
    following = tasks.start(context.run(), name="context")
    servers = tasks.start(fleet.run(), name="mcp servers")
    try:
        yield
    finally:
        following.cancel()
        fleet.stop()
        await asyncio.wait([servers, following])


@asynccontextmanager
async def member(
    tasks: Background, membership: Place, announcer: Announcer, resources: ResourceServices, fleet: Fleet
) -> AsyncIterator[None]:
    """Join, and stay; on leaving give the place up. From then on nothing new is run."""

    async def join() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAD_START_S):
                await fleet.wait_settled()
        await membership.run()

    running = [
        tasks.start(join(), name="membership"),
        tasks.start(announcer.run(), name="announcer"),
        tasks.start(resources.run(), name="resource notices"),
    ]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await membership.leave()


@asynccontextmanager
async def calls_ended(in_flight: InFlight, confirmation: Confirmation, drain_s: float) -> AsyncIterator[None]:
    """On leaving, wait for the calls that run; those that take longer than `drain_s` are broken off.

    Those that wait for the user's word do not run, and end at once.
    """
    try:
        yield
    finally:
        confirmation.ask_no_more()
        if in_flight.running:
            _log.info(waiting_for_calls(in_flight.running, drain_s))
        try:
            async with asyncio.timeout(drain_s):
                await in_flight.wait_idle()
        except TimeoutError:
            _log.warning("%s broken off: not ended within %g s", counted(in_flight.running, "call"), drain_s)
        await in_flight.aclose()


@dataclass(frozen=True, slots=True)
class Inside:
    """Made by `open_inside`."""

    tasks: Background
    dispatcher: Dispatcher
    fleet: Fleet
    catalogue: Catalogue
    in_flight: InFlight
    confirmation: Confirmation
    announcer: Announcer
    context: Context
    resources: ResourceServices


@asynccontextmanager
async def open_inside(
    settings: ComputerSettings,
    office: OfficeClient,
    *,
    max_body: int,
    may_tell: Callable[[], bool],
    tracing: Tracing | None,
    readiness: Readiness,
    config: ComputerConfig | None = None,
    asker: Asker | None = None,
    environ: Mapping[str, str] | None = None,
    more: Mapping[str, Handler] = MappingProxyType({}),
    metrics: Metrics | None = None,
) -> AsyncIterator[Inside]:
    """Run the MCP servers of this host, and have ready what answers for them.

    Args:
        office: to whom changes are told.
        max_body: bytes that an answer may have.
        may_tell: whether this Computer is a member now.
        config: None reads the settings' file.
        asker: who confirms tools; None where nobody can be asked.
        environ: for the placeholders of the configuration; None is this process's environment.
        more: handlers that only this connection needs, by event.
        metrics: count what happens here.

    Raises:
        ConfigError: the file cannot be used.
    """
    config = load_config(settings.config) if config is None else config
    environ = os.environ if environ is None else environ
    metrics = Metrics() if metrics is None else metrics
    network = network_variables(environ)
    for doubt in config.doubts:
        if doubt in config.undeclared:
            continue  # its server says so
        _log.warning("configuration: %s", doubt)
    warn_of_what_is_not_applied(config)
    announcer = Announcer(
        office,
        settings.office,
        settings.name,
        may_tell=may_tell,
        gather_s=settings.gather_s,
        content={CAPABILITIES: lambda: {"capabilities": context.capabilities.now}},
    )
    fleet = Fleet(
        config.servers.values(),
        InputResolver(config.inputs, environ),
        limits=Limits(
            max_message=max_body,
            start_s=settings.start_s,
            environment=network if settings.pass_network_env else {},
            withheld=() if settings.pass_network_env else tuple(sorted(network)),
        ),
        on_change=lambda: announcer.changed(TOOL_LIST) if catalogue.refresh() else None,
    )
    catalogue = Catalogue(fleet.supervisors)
    context = Context(fleet, announcer, read_s=settings.read_s, max_body=max_body)
    readiness.add("mcp_servers", lambda: None if fleet.settled else "starting")
    keeping = Keeping(results_s=settings.keep_results_s, results_bytes=settings.keep_results_bytes)
    async with background() as tasks, InFlight(keeping) as in_flight:
        resources = resource_services(settings, office, fleet, context, tasks, max_body=max_body, may_tell=may_tell)
        confirmation = Confirmation(settings.confirm, asker)
        calls = ToolCalls(
            catalogue,
            in_flight,
            confirmation,
            context.history,
            max_body=max_body,
            trace_content=settings.trace_content,
            ended=calls_timed(metrics),
        )
        dispatcher = Dispatcher(
            {**handlers(calls, catalogue, in_flight, config), **context.handlers(), **resources.handlers, **more},
            tracing=tracing,
            observe=lambda call: bind_call(
                req_id=call.req_id, office=office_of(call), trace_id=partial(trace_id_of, call)
            ),
        )
        measure(metrics, fleet, in_flight, may_tell)
        async with running(tasks, fleet, context):
            yield Inside(tasks, dispatcher, fleet, catalogue, in_flight, confirmation, announcer, context, resources)


def handlers(
    calls: ToolCalls, catalogue: Catalogue, in_flight: InFlight, config: ComputerConfig
) -> Mapping[str, Handler]:
    """The Computer's handlers by event, their dependencies bound."""
    return {
        "client:tool_call": calls,
        "client:get_tools": partial(get_tools, catalogue=catalogue),
        "client:get_config": partial(get_config, shown=shown(config)),
        registry_contract.PENDING.event: partial(pending, in_flight=in_flight),
    }


def warn_of_what_is_not_applied(config: ComputerConfig) -> None:
    """`vrl` and `ret_object_mapper` are accepted, and results are not transformed yet."""
    for name, server in config.servers.items():
        if server.vrl is not None:
            _log.warning("MCP server %r: its vrl program is not applied yet", name)
        metas = [*server.tool_meta.values(), *([server.default_tool_meta] if server.default_tool_meta else [])]
        if any(meta.ret_object_mapper is not None for meta in metas):
            _log.warning("MCP server %r: its ret_object_mapper is shown to Agents, and not applied yet", name)
