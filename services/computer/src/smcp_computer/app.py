"""The Computer as one thing to enter: `async with open_computer(settings, bus)`."""

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from smcp_bus import internal_rows
from smcp_bus.bus import Bus, Incoming
from smcp_bus.call_records import Keeping
from smcp_bus.dispatch import Door
from smcp_bus.dispatch_types import Handler
from smcp_bus.owner import OwnerGate
from smcp_bus.registry_client import RegistryClient
from smcp_bus.tracing import bus_spans, office_of, trace_id_of
from smcp_computer.announcing import CAPABILITIES, TOOL_LIST, Announcer
from smcp_computer.config.file import ComputerConfig, load_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.config.redact import shown
from smcp_computer.confirmation import Asker, Confirmation
from smcp_computer.context import Context
from smcp_computer.handlers.abandoned import AbandonedCalls
from smcp_computer.handlers.alive import alive
from smcp_computer.handlers.get_config import get_config
from smcp_computer.handlers.get_tools import get_tools
from smcp_computer.handlers.pending import pending
from smcp_computer.handlers.tool_call import ToolCalls
from smcp_computer.in_flight import InFlight
from smcp_computer.lifetimes import calls_ended, member, running
from smcp_computer.mcp.environment import network_variables
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.supervisor import Limits
from smcp_computer.membership import Membership
from smcp_computer.resource_services import ResourceServices, resource_services
from smcp_computer.settings import ComputerSettings
from smcp_computer.subscriptions import subscribed
from smcp_computer.tools.catalogue import Catalogue
from smcp_service.health import Readiness
from smcp_service.lifecycle import background
from smcp_service.logging import bind_call

_log = logging.getLogger("smcp_computer")


class ProcessBus(Bus, Protocol):
    """A bus that says who this process is on it."""

    @property
    def process(self) -> str:
        """This process's id, new at each start."""

    @property
    def credential(self) -> str:
        """The name under which it logged in at NATS."""


@dataclass(frozen=True, slots=True)
class Computer:
    """A Computer that serves."""

    readiness: Readiness
    membership: Membership
    fleet: Fleet
    catalogue: Catalogue
    in_flight: InFlight
    announcer: Announcer
    context: Context
    resources: ResourceServices

    async def wait_ready(self) -> None:
        """Return once it is in its office and each enabled MCP server is ready or has failed its first start."""
        await self.membership.joined.wait()
        await self.fleet.wait_settled()


@asynccontextmanager
async def open_computer(
    settings: ComputerSettings,
    bus: ProcessBus,
    *,
    config: ComputerConfig | None = None,
    readiness: Readiness | None = None,
    asker: Asker | None = None,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Computer]:
    """Run the MCP servers of this host and answer for them in the settings' office, over `bus`.

    It is entered once the subjects are served; joining goes on in the background, for as long as it takes. Leaving it
    takes no new calls, gives the place up, waits for the calls that run (at most `drain_s`), and ends the servers.

    Args:
        config: None reads the settings' file.
        asker: who confirms tools; None where nobody can be asked.
        environ: for the placeholders of the configuration; None is this process's environment.

    Raises:
        ConfigError: the file cannot be used.
        BusError: nats-server refuses the subjects, or is not there.
    """
    config = load_config(settings.config) if config is None else config
    environ = os.environ if environ is None else environ
    network = network_variables(environ)
    readiness = Readiness() if readiness is None else readiness
    for doubt in config.doubts:
        if doubt in config.undeclared:
            continue  # its server says so
        _log.warning("configuration: %s", doubt)
    warn_of_what_is_not_applied(config)
    registry = RegistryClient(bus, credential=bus.credential, process=bus.process, lease_s=settings.lease_s)
    gate = OwnerGate(bus, lease_s=settings.lease_s)
    announcer = Announcer(
        registry,
        settings.office,
        settings.name,
        may_tell=lambda: gate.is_open,
        gather_s=settings.gather_s,
        content={CAPABILITIES: lambda: {"capabilities": context.capabilities.now}},
    )
    fleet = Fleet(
        config.servers.values(),
        InputResolver(config.inputs, environ),
        limits=Limits(
            max_message=bus.max_body,
            start_s=settings.start_s,
            environment=network if settings.pass_network_env else {},
            withheld=() if settings.pass_network_env else tuple(sorted(network)),
        ),
        on_change=lambda: announcer.changed(TOOL_LIST) if catalogue.refresh() else None,
    )
    catalogue = Catalogue(fleet.supervisors)
    context = Context(fleet, announcer, read_s=settings.read_s, max_body=bus.max_body)
    membership = Membership(
        bus,
        registry,
        gate,
        announcer,
        office=settings.office,
        name=settings.name,
        session=bus.process,
        lease_s=settings.lease_s,
        capabilities=lambda: context.capabilities.now,
    )
    keeping = Keeping(results_s=settings.keep_results_s, results_bytes=settings.keep_results_bytes)
    readiness.add("nats", lambda: None if bus.connected else "not connected")
    readiness.add("office", lambda: membership.problem)
    readiness.add("mcp_servers", lambda: None if fleet.settled else "starting")
    async with background() as tasks, InFlight(keeping) as in_flight:
        resources = resource_services(
            settings, registry, fleet, context, tasks, max_body=bus.max_body, may_tell=lambda: gate.is_open
        )
        membership.listen(resources.in_office)
        calls = ToolCalls(
            catalogue,
            in_flight,
            Confirmation(settings.confirm, asker),
            context.history,
            max_body=bus.max_body,
            trace_content=settings.trace_content,
        )
        door = Door(
            {
                **handlers(calls, catalogue, in_flight, config, session=bus.process),
                **context.handlers(),
                **resources.handlers,
            },
            tracing=bus_spans(),
            observe=lambda call: bind_call(
                req_id=call.req_id, office=office_of(call), trace_id=partial(trace_id_of, call)
            ),
        )
        abandoned = AbandonedCalls(in_flight, gate, office=settings.office)

        async def notified(incoming: Incoming) -> None:
            abandoned.notified(incoming)
            await resources.notified(incoming)

        tasks.start(gate.run(), name="gate")
        async with (
            running(tasks, fleet, context),
            subscribed(
                bus,
                door,
                gate,
                in_flight,
                office=settings.office,
                name=settings.name,
                credential=bus.credential,
                process=bus.process,
                on_told=membership.told,
                on_notified=notified,
            ),
            calls_ended(in_flight, settings.drain_s),
            member(tasks, membership, announcer, resources, fleet),
        ):
            try:
                yield Computer(readiness, membership, fleet, catalogue, in_flight, announcer, context, resources)
            finally:
                readiness.drain()


def handlers(
    calls: ToolCalls, catalogue: Catalogue, in_flight: InFlight, config: ComputerConfig, *, session: str
) -> Mapping[str, Handler]:
    """The Computer's handlers by event, their dependencies bound."""
    return {
        "client:tool_call": calls,
        "client:get_tools": partial(get_tools, catalogue=catalogue),
        "client:get_config": partial(get_config, shown=shown(config)),
        internal_rows.PENDING.event: partial(pending, in_flight=in_flight),
        internal_rows.ALIVE.event: partial(alive, session=session),
    }


def warn_of_what_is_not_applied(config: ComputerConfig) -> None:
    """`vrl` and `ret_object_mapper` are accepted, and results are not transformed yet."""
    for name, server in config.servers.items():
        if server.vrl is not None:
            _log.warning("MCP server %r: its vrl program is not applied yet", name)
        metas = [*server.tool_meta.values(), *([server.default_tool_meta] if server.default_tool_meta else [])]
        if any(meta.ret_object_mapper is not None for meta in metas):
            _log.warning("MCP server %r: its ret_object_mapper is shown to Agents, and not applied yet", name)
