"""The Computer over NATS (`open_computer`), and as a process with its health port (`open_service`)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from smcp_bus import registry_contract, subjects
from smcp_bus.audit import Trail
from smcp_bus.audit_sinks import ApprovalSink, open_trail
from smcp_bus.bus import Incoming, Subscription, once_connected
from smcp_bus.dispatch import Call
from smcp_bus.headers import EPOCH, SUBJECT
from smcp_bus.nats.bus import Bus
from smcp_bus.nats.config import Credentials
from smcp_bus.operations import measure_lease, open_service_bus
from smcp_bus.ownership import MAX_REQUESTS, Ownership, owned
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion
from smcp_bus.subjects import request_handler, serve_requests
from smcp_bus.tracing import bus_spans, caused_by
from smcp_computer.computer import EVENTS, Computer, Options
from smcp_computer.config.file import ComputerConfig
from smcp_computer.control import open_control
from smcp_computer.mcp.fleet import DRAIN_S
from smcp_computer.membership import Membership
from smcp_computer.settings import ComputerSettings, token_of
from smcp_computer.terminal import open_terminal
from smcp_proto.schemas import EnterOfficeNotification, LeaveOfficeNotification
from smcp_proto.schemas.base import AgentCallData
from smcp_service.health import Readiness, Stats, serve_health
from smcp_service.lifecycle import background
from smcp_service.metrics import Metrics

_log = logging.getLogger("smcp_computer.app")


def open_approvals(
    settings: ComputerSettings, bus: Bus, metrics: Metrics | None = None
) -> AbstractAsyncContextManager[Trail]:
    """The audit trail of a Computer on NATS: it tells a registry, since it may not publish records."""
    registry = RegistryClient(bus, credential=bus.credential, process=bus.process)
    sink = partial(ApprovalSink, registry, settings.office, settings.name)
    return open_trail(EVENTS, settings, bus, metrics, sink=sink)


@asynccontextmanager
async def open_computer(settings: ComputerSettings, bus: Bus, **options: Unpack[Options]) -> AsyncIterator[Computer]:
    """Run the MCP servers of this host and answer for them in the settings' office, over `bus`.

    Entered once the subjects are served; joining goes on in the background, for as long as it takes. On leaving, it
    starts no new calls, leaves the office (with `restart` its seat is kept at the end of its calls), waits for calls
    that run (at most `drain_s`), and ends the servers.

    Raises ConfigError (the file) and BusError (nats-server refuses the subjects).
    """
    registry = RegistryClient(bus, credential=bus.credential, process=bus.process, lease_s=settings.lease_s)
    ownership = Ownership(bus, lease_s=settings.lease_s)

    async def alive(question: AliveQuestion, call: Call) -> AliveAnswer:
        return AliveAnswer(session=question.session in (None, bus.process))  # a Computer's one session is its process

    async with background() as tasks:
        computer = Computer(
            settings,
            registry.tell,
            tasks,
            max_body=bus.max_body,
            may_tell=lambda: ownership.is_open,
            tracing=bus_spans(),
            handlers={registry_contract.ALIVE.event: alive},
            **options,
        )
        membership = computer.membership = Membership(settings, bus, registry, ownership, computer)
        measure_lease(computer.metrics, membership.lease)
        computer.readiness.add("nats", lambda: bus.problem)
        computer.readiness.add("office", lambda: membership.problem)
        tasks.start(ownership.run(), name="ownership")
        async with (
            computer.serving(),
            _serving(bus, computer, ownership, membership),
            membership.moved(),
            computer.calls_ended(settings.drain_s),
            computer.member(),
        ):
            tasks.start(membership.lease.run(), name="lease")
            try:
                yield computer
            finally:
                computer.readiness.drain()


@asynccontextmanager
async def open_service(
    settings: ComputerSettings, config: ComputerConfig, credentials: Credentials | None, environ: Mapping[str, str]
) -> AsyncIterator[Computer]:
    """The Computer with its own connection, to NATS or to a gateway, and health port. Raises Failure.
    `environ`: what the placeholders of the configuration are taken from."""
    readiness, stats = Readiness(), Stats()
    async with AsyncExitStack() as stack:
        enter, metrics = stack.enter_async_context, Metrics()
        health = await enter(serve_health(settings, readiness, metrics, stats))
        terminal = stack.enter_context(open_terminal())
        options = Options(config=config, readiness=readiness, terminal=terminal, metrics=metrics, environ=environ)
        control = await enter(open_control(settings))  # ends last: it says what a stop waits for
        if settings.gateway_url is not None:
            options["trail"] = await enter(open_trail(EVENTS, settings, None, metrics, name=settings.name))
            from smcp_computer.gateway import open_gateway_computer  # noqa: PLC0415 -- Socket.IO is for this way alone

            computer = await enter(open_gateway_computer(settings, token=token_of(settings), **options))
        else:
            hint = " (SMCP_NATS_URL says where it is; --gateway needs no NATS)"
            bus = await enter(
                open_service_bus("smcp-computer", settings, credentials, readiness, metrics, stats, hint=hint)
            )
            options["trail"] = await enter(open_approvals(settings, bus, metrics))
            computer = await enter(open_computer(settings, bus, **options))
        control.computer = computer
        computer.follow_file()
        stats["computer"] = computer.calls.held
        stats["updates"] = computer.outbox.held
        served = {"health": health.url, "office": settings.office, "computer": settings.name}
        _log.info("serving", extra=served)
        yield computer


@asynccontextmanager
async def _serving(bus: Bus, computer: Computer, ownership: Ownership, membership: Membership) -> AsyncIterator[None]:
    """Serve the Computer's subjects and follow the notifications of its office while the body runs. On leaving, what
    runs is waited for (bounded). Raises BusError: nats-server does not permit it."""
    seat, notifications = computer.seat, _OfficeNotifications(computer, ownership, membership)
    handler = owned(request_handler(computer.dispatcher), ownership.refusal)
    host = subjects.hosts(bus.credential, bus.process, registry_contract.ALIVE.verb)
    calls = subjects.client_all(seat.office, seat.computer)
    subscriptions: list[Subscription] = [
        await serve_requests(bus, computer.dispatcher, host),
        await once_connected(lambda: bus.serve(calls, handler, queue=subjects.OWNER_QUEUE, limit=MAX_REQUESTS)),
        await once_connected(lambda: bus.listen(subjects.notify_all(seat.office), notifications.heard)),
    ]
    try:
        yield
    finally:
        drains = [asyncio.ensure_future(subscription.drain()) for subscription in subscriptions]
        _, late = await asyncio.wait(drains, timeout=DRAIN_S)
        for drain in late:
            drain.cancel()


@dataclass(eq=False)
class _OfficeNotifications:
    """Notifications that concern calls, Agents that leave, and this Computer's own membership."""

    _computer: Computer
    _ownership: Ownership
    _membership: Membership
    _entered: tuple[str, int] = ("", 0)
    """The Agent that entered last, and the epoch of that."""

    async def heard(self, incoming: Incoming) -> None:
        try:
            match subjects.verb_of(incoming.subject):
                case "tool_call_cancel":
                    with caused_by(incoming.headers):
                        cancel = AgentCallData.model_validate_json(incoming.body)
                        self._computer.calls.cancel(cancel, incoming.headers.get(SUBJECT, ""))
                case "enter_office":
                    who = EnterOfficeNotification.model_validate_json(incoming.body)
                    self._moved(who.agent, who.computer, int(incoming.headers.get(EPOCH, "")), left=False)
                case "leave_office":
                    whose = LeaveOfficeNotification.model_validate_json(incoming.body)
                    self._moved(whose.agent, whose.computer, int(incoming.headers.get(EPOCH, "")), left=True)
        except ValueError:  # also pydantic's
            _log.warning("a notification that cannot be read was ignored")

    def _moved(self, agent: str | None, computer: str | None, epoch: int, *, left: bool) -> None:
        seat = self._computer.seat
        if computer == seat.computer:
            self._membership.presence_changed(epoch // 2)
        if agent is not None and not left and epoch > self._entered[1]:
            self._entered = (agent, epoch)
        elif agent is not None and left:

            def is_back() -> bool:
                return self._entered[0] == agent and self._entered[1] > epoch

            self._computer.calls.agent_left(agent, self._ownership, is_back)
            self._computer.resources.subscriptions.left(agent)
