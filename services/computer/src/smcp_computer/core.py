"""The part of a Computer that does not depend on its connection: MCP servers, handlers, calls, and how they end.

`app` connects it over NATS, `gateway` over Socket.IO.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol, TypedDict, Unpack

from smcp_bus import registry_contract
from smcp_bus.dispatch import Call, Dispatcher, Handler, Tracing
from smcp_bus.owner import Keeping, Owner
from smcp_bus.ownership import Seat
from smcp_bus.registry_contract import PendingAnswer, PendingQuestion
from smcp_bus.tracing import office_of, trace_id_of
from smcp_computer.config.file import ComputerConfig, load_config
from smcp_computer.config.inputs import InputResolver, network_variables
from smcp_computer.config.redact import shown
from smcp_computer.confirmation import Asker, Confirmation
from smcp_computer.handlers.tool_call import ToolCalls
from smcp_computer.mcp.supervisor import Fleet, Limits
from smcp_computer.metrics import calls_timed, measure
from smcp_computer.outbox import CAPABILITIES, TOOL_LIST, OfficeClient, Outbox
from smcp_computer.resource_services import ResourceServices
from smcp_computer.settings import ComputerSettings
from smcp_computer.tools import Catalogue
from smcp_proto.schemas.config import GetComputerConfigReq, GetComputerConfigRet
from smcp_proto.schemas.tools import GetToolsReq, GetToolsRet
from smcp_service.health import Readiness
from smcp_service.lifecycle import Background, background, counted, waiting_for_calls
from smcp_service.logging import bind_call
from smcp_service.metrics import Metrics

_log = logging.getLogger("smcp_computer")

HEAD_START_S: Final = 5.0
"""How long the MCP servers may take before the office is joined without them: an Agent that sees this Computer come
asks for its tools at once. Those that come later are announced."""


class OfficeMembership(Protocol):
    """`run` joins and stays, `leave` leaves the office; neither raises what the office answers."""

    @property
    def joined(self) -> asyncio.Event: ...

    @property
    def problem(self) -> str | None: ...

    async def run(self) -> None: ...

    async def leave(self) -> None: ...


class Options(TypedDict, total=False):
    """What may be given in place of what a process takes from its settings and surroundings.

    `asker` confirms tools (default: nobody can be asked); `environ` is for the placeholders of the configuration.
    """

    config: ComputerConfig
    readiness: Readiness
    asker: Asker | None
    environ: Mapping[str, str]
    metrics: Metrics


@dataclass
class Computer:
    """Made by `open_core`; who connects it sets `membership`."""

    readiness: Readiness
    metrics: Metrics
    tasks: Background
    dispatcher: Dispatcher
    fleet: Fleet
    catalogue: Catalogue
    owner: Owner
    seat: Seat
    calls: ToolCalls
    outbox: Outbox
    resources: ResourceServices
    confirmation: Confirmation
    membership: OfficeMembership = field(init=False)

    async def wait_ready(self) -> None:
        """Return once it is in its office and each enabled MCP server is ready or has failed its first start."""
        await self.membership.joined.wait()
        await self.fleet.wait_settled()

    @asynccontextmanager
    async def member(self) -> AsyncIterator[None]:
        """Join, and stay; on leaving give the membership up. From then on nothing new is run."""

        async def join() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEAD_START_S):
                    await self.fleet.wait_settled()
            await self.membership.run()

        running = [
            self.tasks.start(join(), name="membership"),
            self.tasks.start(self.outbox.run(), name="outbox"),
        ]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            await self.membership.leave()

    @asynccontextmanager
    async def calls_ended(self, drain_s: float) -> AsyncIterator[None]:
        """On leaving, wait for the calls that run; those that take longer than `drain_s` are broken off.

        Calls that wait for the user's confirmation do not run, and end at once.
        """
        try:
            yield
        finally:
            self.confirmation.ask_no_more()
            if self.owner.running:
                _log.info(waiting_for_calls(self.owner.running, drain_s))
            try:
                async with asyncio.timeout(drain_s):
                    await self.owner.wait_idle()
            except TimeoutError:
                _log.warning("%s broken off: not ended within %g s", counted(self.owner.running, "call"), drain_s)
            await self.calls.aclose()


@asynccontextmanager
async def open_core(
    settings: ComputerSettings,
    office: OfficeClient,
    *,
    max_body: int,
    may_tell: Callable[[], bool],
    tracing: Tracing | None,
    handlers: Mapping[str, Handler] = MappingProxyType({}),
    **options: Unpack[Options],
) -> AsyncIterator[Computer]:
    """Run the MCP servers of this host, and have ready what answers for them. Raises ConfigError.

    Args:
        office: to whom changes are told.
        max_body: bytes that an answer may have.
        may_tell: whether this Computer is a member now.
        handlers: those that only this connection needs, by event.
    """
    config = options.get("config") or load_config(settings.config)
    environ = options.get("environ", os.environ)
    metrics = options.get("metrics") or Metrics()
    readiness = options.get("readiness") or Readiness()
    network = network_variables(environ)
    for warning in config.warnings:
        _log.warning("configuration: %s", warning)
    outbox = Outbox(
        office,
        settings.office,
        settings.name,
        may_tell=may_tell,
        gather_s=settings.gather_s,
        content={CAPABILITIES: lambda: {"capabilities": resources.index.capabilities}},
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
        on_change=lambda: outbox.changed(TOOL_LIST) if catalogue.refresh() else None,
    )
    catalogue = Catalogue(fleet.supervisors)
    readiness.add("mcp_servers", lambda: "starting" if fleet.starting else None)
    shown_config = shown(config)

    async def get_config(request: GetComputerConfigReq, call: Call) -> GetComputerConfigRet:
        return shown_config

    async def get_tools(request: GetToolsReq, call: Call) -> GetToolsRet:
        return GetToolsRet(tools=list(catalogue.listing), req_id=request.req_id)

    keeping = Keeping(results_s=settings.keep_results_s, results_bytes=settings.keep_results_bytes)
    owner, seat = Owner(keeping), Seat(settings.office, settings.name)

    async def pending(question: PendingQuestion, call: Call) -> PendingAnswer:
        return owner.pending(seat, question)

    async with background() as tasks:
        resources = ResourceServices(settings, fleet, outbox, tasks, max_body=max_body)
        confirmation = Confirmation(settings.confirm, options.get("asker"))
        calls = ToolCalls(
            catalogue,
            owner,
            seat,
            confirmation,
            resources.history,
            max_body=max_body,
            trace_content=settings.trace_content,
            ended=calls_timed(metrics),
        )
        dispatcher = Dispatcher(
            {
                "client:tool_call": calls,
                "client:get_tools": get_tools,
                "client:get_config": get_config,
                registry_contract.PENDING.event: pending,
                **resources.handlers,
                **handlers,
            },
            tracing=tracing,
            observe=lambda call: bind_call(
                req_id=call.req_id, office=office_of(call), trace_id=partial(trace_id_of, call)
            ),
        )
        measure(metrics, fleet, owner, may_tell)
        following = tasks.start(resources.run(), name="resources")
        servers = tasks.start(fleet.run(), name="mcp servers")
        try:
            yield Computer(
                readiness,
                metrics,
                tasks,
                dispatcher,
                fleet,
                catalogue,
                owner,
                seat,
                calls,
                outbox,
                resources,
                confirmation,
            )
        finally:
            await calls.aclose()
            following.cancel()
            fleet.stop()
            await asyncio.wait([servers, following])
