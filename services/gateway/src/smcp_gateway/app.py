"""Puts the gateway together: its parts, and the handler of each event that clients may send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from smcp_auth.quotas import Quotas
from smcp_bus import subjects
from smcp_bus.audit import Trail
from smcp_bus.dispatch import Dispatcher, Handler
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_client import LeaseKeeper, RegistryClient
from smcp_bus.subjects import serve_requests
from smcp_bus.tracing import client_spans, counted, log_fields
from smcp_gateway.audit import Audit
from smcp_gateway.background_tasks import BackgroundTasks
from smcp_gateway.calls import CallTable, OwnerProbe
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.handlers.relay import Relay
from smcp_gateway.handlers.rooms import ListResources, Rooms, alive, metered, resource_updated
from smcp_gateway.http_server import HttpServer
from smcp_gateway.metrics import measure
from smcp_gateway.rooms.memberships import Memberships, Repair
from smcp_gateway.rooms.moves import Moves
from smcp_gateway.rooms.offices import Generations, Offices
from smcp_gateway.settings import GatewaySettings
from smcp_gateway.sockets.session import Sessions
from smcp_gateway.sockets.socketio_server import SocketIoServer
from smcp_proto.catalog import Row, upstream
from smcp_service.lifecycle import Background, background

EVENTS: Final = "smcp_gateway.events"
"""The logger of what is recorded, too (`smcp_bus.audit`)."""
LAST_TASKS_S: Final = 5.0
"""How long a stopping gateway waits for its background tasks, and then the bus for handlers that run (seconds)."""


class Gateway:
    def __init__(self, settings: GatewaySettings, bus: Bus, front: HttpServer, tasks: Background, trail: Trail) -> None:
        self.front = front
        self.readiness = front.readiness
        self.process = bus.process
        self._bus = bus
        self._drain_s = settings.drain_s
        registry = RegistryClient(bus, credential=bus.credential, process=self.process, lease_s=settings.lease_s)
        self.sessions = sessions = Sessions()
        self._audit = audit = Audit(trail, sessions)
        front.refused = audit.not_connected
        self.calls = calls = CallTable()
        self._generations = generations = Generations()
        self._background = BackgroundTasks(lambda work: tasks.start(work, name="background task"))
        clock = asyncio.get_running_loop().time
        self.quotas = quotas = Quotas(settings.quotas, burst_s=settings.quota_burst_s, clock=clock)
        self.transport = SocketIoServer(sessions, settings, quotas, front.authenticator, audit)
        self.computers = ComputerTable(
            bus, registry, self._background, self.transport, quotas, settings, request_repair=generations.want
        )
        self.offices = Offices(bus, self.transport, self.computers, generations)
        self.memberships = Memberships(
            registry, self.transport, self.offices, self.computers, self._background, calls, generations, audit
        )
        self.transport.gone = self.memberships.gone
        self.repair = Repair(sessions, self.memberships)
        self.moves = Moves(sessions, self.transport, self.repair, calls, settings)
        self.relay = Relay(self.computers, calls, sessions)
        self.lists = ListResources(self.relay, self.offices)
        self.transport.dispatcher = self._client_dispatcher(settings.max_values)
        self.lease = LeaseKeeper(
            registry,
            lease_s=settings.lease_s,
            describe=self.moves.describe,
            on_lapsed=self._lapsed,
            on_renewed=self.moves.renewed,
        )
        self._probe = OwnerProbe(bus, registry, calls, lease_s=settings.lease_s)
        measure(self)
        self.readiness.add("nats", lambda: bus.problem)
        self.readiness.add("registry", lambda: None if self.lease.acquired else "no lease yet")

    @property
    def url(self) -> str:
        return self.front.listener.url

    def held(self) -> dict[str, int]:
        return {
            "sessions": len(self.sessions),
            "events_in_flight": sum(session.in_flight for session in self.sessions),
            "questions_to_clients": sum(len(session.asks) for session in self.sessions),
            "offices": len(self.offices),
            "calls": len(self.calls),
            "computers": len(self.computers),
            "computers_subscriptions": self.computers.subscribed,
            **self.computers.owner.held(),
        }

    @asynccontextmanager
    async def serving(self, tasks: Background) -> AsyncIterator[None]:
        stop_watching = self._bus.watch(self._generations.on_connection)
        subject = subjects.hosts(self._bus.credential, self.process, "alive")
        answers = Dispatcher({"hosts:alive": partial(alive, sessions=self.sessions)})
        serving = await serve_requests(self._bus, answers, subject)
        works = {
            "owner probe": self._probe.run(),
            "repair": self.repair.run(),
            "computers": self.computers.run(),
            "lease": self.lease.run(),
            "ping sweep": self.transport.sweep(),
            "rebalance": self.moves.rebalance(),
        }
        if self.front.authenticator is not None:
            works["expiry"] = self.moves.end_expired(self.front.authenticator)
        try:
            for name, work in works.items():
                tasks.start(work, name=name)
            self.front.answer = self.transport.answer
            try:
                yield
            except BaseException:
                self._background.close()  # an error, not a stop: the lease will expire
                raise
            await self._stop()
        finally:
            self.front.answer = None
            stop_watching()
            await serving.drain()

    def _client_dispatcher(self, max_values: int) -> Dispatcher:
        rooms = Rooms(self.sessions, self.memberships, self.quotas, self.repair)
        limited = partial(metered, quotas=self.quotas, sessions=self.sessions)
        relay = self.relay
        listing, metered_relay = limited(self.lists), limited(relay)
        durations = self.front.metrics.durations(
            "smcp_gateway_call_duration", "Requests of clients, until they are answered", "event", "outcome"
        )
        before = self._audit.before

        def fallback(row: Row) -> Handler | None:
            """Events that are passed on as they are: the others of the catalog, and those of later versions."""
            if row.event.startswith("client:"):
                return metered_relay if row.metered else relay
            is_said_by_a_computer = row.event.startswith("server:update_") or upstream(row) is not None
            return rooms.update if is_said_by_a_computer else None

        return Dispatcher(
            {
                "server:join_office": before(rooms.join_office),
                "server:leave_office": rooms.leave_office,
                "server:list_room": rooms.list_room,
                "server:tool_call_cancel": relay.cancel,
                "server:tool_progress": rooms.tool_progress,
                "client:tool_call": before(relay),
                "client:get_desktop": metered_relay,
                "client:get_finder": metered_relay,
                "client:resources/list": listing,
                "client:resources/templates/list": listing,
                "notify:resources/updated": partial(resource_updated, computers=self.computers),
            },
            otherwise=fallback,
            tracing=client_spans(),
            observe=log_fields,
            ended=counted(durations.add),
            conclude=self._audit.concluded,
            fit=self.transport.fit,
            max_values=max_values,
        )

    async def _stop(self) -> None:
        self.readiness.draining = True
        self.transport.draining = True
        self.lease.renew_soon()  # the fair share of the others no longer counts this one
        await self.moves.drain(within=self._drain_s)
        self.computers.stopping = True
        self.memberships.stopping.set()
        await self._background.settle(within=LAST_TASKS_S)

    def _lapsed(self) -> None:
        self.computers.ownership.close("the lease had expired")
        self._generations.want()


@asynccontextmanager
async def open_gateway(
    settings: GatewaySettings, bus: Bus, *, front: HttpServer, trail: Trail
) -> AsyncIterator[Gateway]:
    """Serve Socket.IO clients on `bus` and `front` while the body runs; drain at its end. What it decides is recorded
    in `trail`. Raises BusError: the bus is not connected."""
    async with background() as tasks:
        gateway = Gateway(settings, bus, front, tasks, trail)
        async with gateway.serving(tasks):
            yield gateway
